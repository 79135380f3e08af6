"""A run folder with a whole journal in it, as a controller would have left it."""

from control_drive import Drive
from tallied_drive import TalliedDrive

from remesh.actors.history.journal_writer import JournalWriter
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev

BEGAN_S = 1_800_000_000.0


class WrittenDrive(TalliedDrive):
    """Every event and every sentence goes into the journal of a folder."""

    def __init__(self, folder, *, incarnation=1, began_s=BEGAN_S, **more):
        self.writer = None
        super().__init__(**more)
        self.now_s += began_s
        self.writer = JournalWriter(folder, incarnation, self.controller.options)
        nodes = self.state.roster.nodes.values()
        for node in nodes:
            joined = ev.NodeJoined(node=node.name, slots=node.slots, head=node.head)
            self.writer.event(joined, self.now_s)
        self.writer.event(ev.RunStarted(), self.now_s)

    def do(self, *events, after_s=0.01):
        if self.writer is None:
            return super().do(*events, after_s=after_s)
        for event in events:
            self.writer.event(event, self.now_s + after_s)
        new = super().do(*events, after_s=after_s)
        for command in new:
            if isinstance(command, cmd.Announce):
                self.writer.announcement(command.text, self.now_s)
            elif isinstance(command, cmd.End):
                self.writer.ending(command.sentence, self.now_s)
        return new


def written_run(folder, *, steps=20, ended=True, **more):
    """A run that has lost a worker at step 10; it goes on to the end unless `ended` is false."""
    drive = WrittenDrive(folder, steps=steps, **more)
    drive.ready()
    drive.train(10)
    drive.save(10)
    drive.commit(10)
    drive.lose(drive.members[0])
    drive.park(10)
    drive.train(steps if ended else steps - 5)
    if ended:
        drive.park(steps, drained=True)
        drive.save(steps)
        drive.commit(steps)
    return drive


__all__ = ["BEGAN_S", "Drive", "WrittenDrive", "written_run"]
