"""Plays the cluster around one controller, for the tests of what it decides."""

from control_values import options, records

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words import events as ev
from remesh.parallel.state.root_manifest import ShardFile


class Drive:
    """Plays the cluster for one controller; every event comes a little later than the last."""

    def __init__(self, *, nodes=(("head", 2), ("b", 2)), **more):
        self.controller = Controller(options(**{"steps": 80, "max_dp": 4, **more}))
        self.now_s = 0.0
        self.commands = []
        for name, slots in nodes:
            self.do(ev.NodeJoined(node=name, slots=slots, head=name == "head"))
        self.do(ev.RunStarted())

    @property
    def state(self):
        return self.controller.state

    @property
    def members(self):
        known = self.state.roster.workers
        return [m.worker for m in self.state.current.members if m.worker in known]

    def do(self, *events, after_s=0.01):
        self.now_s += after_s
        new = [command for e in events for command in self.controller.handle(e, self.now_s)]
        self.commands += new
        return new

    def tick(self):
        """At the next moment that the controller asked for."""
        self.now_s = max(self.now_s, self.controller.next_deadline_s())
        return self.do(ev.Tick(), after_s=0.0)

    def all(self, kind, *, workers=None, generation=None, **values):
        number = self.state.last_generation if generation is None else generation
        names = self.members if workers is None else workers
        return self.do(*(kind(worker=name, generation=number, **values) for name in names))

    def ready(self):
        for worker in list(self.state.roster.workers.values()):
            if worker.state == "starting":
                self.do(ev.WorkerReady(worker=worker.name, node=worker.node, pid=1))

    def train(self, last=None):
        """Forms and restores the newest generation, and trains to `last`."""
        self.all(ev.WorkerFormed, form_s=0.01)
        self.all(ev.WorkerRestored, at_step=self.state.current.from_step, restore_s=0.01)
        if last is not None:
            self.steps(last)
        return self

    def steps(self, last):
        done = records(self.state.step + 1, last, self.now_s)
        self.all(ev.StepsDone, workers=self.members[:1], records=done)

    def lose(self, *workers):
        return self.do(*(ev.WorkerLost(worker=name, cause="killed") for name in workers))

    def park(self, at_step, *, drained=False, held_in=None, **values):
        """What they hold is of the generation in being, unless `held_in` says another."""
        held_in = self.state.last_generation if held_in is None else held_in
        values |= {"at_step": at_step, "drained": drained, "held_in": held_in}
        return self.all(ev.WorkerParked, **values)

    def save(self, step, **values):
        files = (ShardFile(name="part", size_bytes=1, digest="0"),)
        return self.all(ev.FilesSaved, step=step, files=files, **values)

    def commit(self, step):
        generation = self.state.last_generation
        name = f"step-{step}.gen-{generation}"
        self.do(ev.CheckpointCommitted(generation=generation, step=step, name=name))


def running(last=None, **options):
    drive = Drive(**options)
    drive.ready()
    return drive.train(last)


def of(kind, commands):
    return [command for command in commands if isinstance(command, kind)]
