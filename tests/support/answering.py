"""A cluster that answers every command of one controller in the next moment, as it should."""

from control_drive import Drive

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import ENDED
from remesh.parallel.state.root_manifest import ShardFile

MOST = 200  # answers


class Answering(Drive):
    """`answer` goes on until nothing is asked for; commands of a kind in `mute` are not answered.

    A drained member stands one step beyond the newest that was told, a fenced one at it. A worker
    in `gone` answers nothing. Storage takes `write_s` for each file, the controller `commit_s`.
    """

    def __init__(self, *, mute=(), write_s=0.01, commit_s=0.01, **more):
        self.mute, self.gone = set(mute), set()
        self.write_s, self.commit_s = write_s, commit_s
        self.held_in = {}
        super().__init__(**more)

    def stop(self, **values):
        values = {"reason": "enough", "wish": "user", **values}
        return self.answer(self.do(ev.StopRequested(**values)))

    def answer(self, commands):
        """All that was decided on from there on."""
        asked, seen = list(commands), list(commands)
        for _ in range(MOST):
            if not asked or self.state.phase in ENDED:
                return seen
            command = asked.pop(0)
            if type(command) in self.mute:
                continue
            for event, after_s in self._answers(command):
                new = self.tell(event, after_s)
                asked += new
                seen += new
        raise AssertionError(f"still {self.state.phase} after {MOST} answers")

    def tell(self, event, after_s):
        """The event after so long, and each Tick that comes due meanwhile."""
        until_s, seen = self.now_s + after_s, []
        while self.state.phase not in ENDED:
            due_s = self.controller.next_deadline_s()
            if due_s is None or due_s > until_s:
                break
            seen += self.do(ev.Tick(), after_s=max(0.0, due_s - self.now_s))
        return seen + self.do(event, after_s=max(0.0, until_s - self.now_s))

    def wait(self, seconds):
        """Nobody says anything but what is asked for."""
        until_s, seen = self.now_s + seconds, []
        while self.state.phase not in ENDED:
            due_s = self.controller.next_deadline_s()
            if due_s is None or due_s > until_s:
                break
            seen += self.answer(self.do(ev.Tick(), after_s=max(0.0, due_s - self.now_s)))
        self.now_s = max(self.now_s, until_s)
        return seen

    def _answers(self, command):
        there = self.state.roster.workers.keys() - self.gone
        match command:
            case cmd.Form():
                names = [m.worker for m in command.members if m.worker in there]
                of = {"generation": command.generation}
                at = {"at_step": command.from_step, "restore_s": 0.1}
                formed = [ev.WorkerFormed(worker=name, form_s=0.1, **of) for name in names]
                restored = [ev.WorkerRestored(worker=name, **of, **at) for name in names]
                return [(event, 0.01) for event in formed + restored]
            case cmd.Drain() | cmd.Fence():
                drained = isinstance(command, cmd.Drain)
                names = [name for name in command.workers if name in there]
                step = self.state.step + drained
                parked = [(self._parked(command, name, step), 0.01) for name in names]
                saves = drained and command.save
                files = [self._saved(command.generation, step, n) for n in names if saves]
                return parked + files
            case cmd.SaveHeld(generation=generation, step=step):
                names = [name for name in command.workers if name in there]
                return [self._saved(generation, step, name) for name in names]
            case cmd.Commit(generation=generation, step=step):
                name = f"step-{step}.gen-{generation}"
                event = ev.CheckpointCommitted(generation=generation, step=step, name=name)
                return [(event, self.commit_s)]
            case _:
                return []

    def _parked(self, command, worker, step):
        from control_values import records  # noqa: PLC0415

        drained = isinstance(command, cmd.Drain)
        return ev.WorkerParked(
            worker=worker,
            generation=command.generation,
            at_step=step,
            drained=drained,
            held_in=command.generation,
            records=records(step, step, self.now_s) if drained else (),
        )

    def _saved(self, generation, step, worker):
        files = (ShardFile(name=worker, size_bytes=1, digest="0"),)
        event = ev.FilesSaved(worker=worker, generation=generation, step=step, files=files)
        return event, self.write_s


def trained(last=None, **options):
    """A run whose first mesh stands, and has trained to `last`."""
    drive = Answering(**options)
    drive.ready()
    drive.train(last)
    return drive
