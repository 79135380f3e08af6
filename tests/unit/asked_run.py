"""A run that answers over HTTP as a live one does, and stops a while after it was told to."""

from control_values import options

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.contact import Contact
from remesh.actors.run.folder import RunFolder
from remesh.actors.serving.status_server import StatusServer
from remesh.orchestrator.control.words.events import NodeJoined, RunStarted, StopRequested
from remesh.orchestrator.user_errors import UserError

TOKEN = "0123456789abcdef"


class TrainingRun:
    """A live run, as its folder and its status server tell it; it stops after some questions."""

    def __init__(self, path, *, answers_until_stopped=3):
        self.path = path
        self.folder = RunFolder(path)
        self.journal = JournalWriter(path, 1, options())
        self.journal.event(NodeJoined(node="n", slots=2), 1.0)
        self.journal.event(RunStarted(), 1.5)
        self.wishes, self.left = [], answers_until_stopped
        self.open()

    def open(self):
        actions = {"/stop": self.stop, "/drain": self.drain, "/layout": self.layout}
        self.server = StatusServer({"/status": self.status}, TOKEN, actions=actions)
        self.belongs_to("first")

    def belongs_to(self, submission):
        """The word by which the run is found."""
        where = {"host": self.server.host, "port": self.server.port, "token": TOKEN}
        who = {"run": "ab12", "address": "127.0.0.1:9", "pid": 1, "submission": submission}
        self.folder.publish(Contact(**where, **who, started_s=1.0))

    def status(self):
        if self.wishes:
            self.left -= 1
        phase = "draining" if self.wishes else "running"
        return {
            "id": "ab12",
            "phase": phase,
            "step": 7,
            "steps": 80,
            "ended": False,
            "reason": "",
        }

    def stop(self, wish):
        self.wishes.append(wish)
        return {"text": "stopping at the next step boundary"}

    def drain(self, wish):
        raise UserError(f"{wish['node']}: the run knows no such node")

    @staticmethod
    def layout(wish):
        return {"text": f"going over to {wish['layout']}"}

    def wait(self, _seconds):
        if self.wishes and self.left <= 0:
            self.end()

    def end(self):
        self.journal.event(StopRequested(reason="stopped by the user"), 2.0)
        self.folder.withdraw("ab12")
        self.close()

    def close(self):
        self.server.close()
