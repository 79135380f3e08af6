"""Events drawn from a seed, of every kind: each field by its type, near what the state knows.

Half of them are what a cluster would say next, so that a sequence gets somewhere; the other half
may be of anybody, about any generation and step: doubled, late, stale, or plainly wrong.
"""

from dataclasses import MISSING, fields
from random import Random
from typing import get_args, get_type_hints

from control_values import held, records, slot
from ladders import mixed

from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.control.words.recovery import slot_label, slots_of, source_label
from remesh.orchestrator.job.amendments import Amendment
from remesh.orchestrator.plan.wish import asked
from remesh.parallel.state.root_manifest import ShardFile

KINDS = get_args(ev.Event)
NODES = ("head", "b", "c", "d")
LADDERS = (
    mixed({"max_dp": 4}),
    mixed({"tp": 2, "max_dp": 2}),
    mixed({"max_dp": 4, "zero_stage": 2, "zero_group": 2}),
    mixed({"max_dp": 2}, num_leaves=8),
)
HEAVY = frozenset(
    {
        ev.StopRequested,
        ev.WorkerErred,
        ev.WorkerLost,
        ev.WorkerFrozen,
        ev.NodeLost,
        ev.NodeDraining,
        ev.CommitFailed,
        ev.SaveFailed,
    }
)


class Draw:
    """Events for one controller from one seed. With `devices`, workers are given some."""

    def __init__(self, seed, controller, *, devices):
        self.chance = Random(seed)
        self.controller = controller
        self.devices = devices

    @property
    def state(self):
        return self.controller.state

    def event(self, now_s):
        """The next one: what is due, what would follow, or anything."""
        due_s = self.controller.next_deadline_s()
        if due_s is not None and due_s <= now_s:
            return ev.Tick()
        if self.chance.random() < 0.6 and (likely := self._likely()):
            return self.chance.choice(likely)
        kind = self.chance.choice(KINDS)
        while kind in HEAVY and self.chance.random() < 0.7:
            kind = self.chance.choice(KINDS)
        return self.of(kind)

    def of(self, kind):
        """One of this kind. A field with a default has it in every second one."""
        hints, values = get_type_hints(kind), {}
        for field in fields(kind):
            if field.default is MISSING or self.chance.random() < 0.5:
                values[field.name] = self.value(field.name, hints[field.name])
        for name in ("fenced", "certain", "at_once"):
            if name in values:
                values[name] = self.chance.random() < 0.1
        return kind(**values)

    def value(self, name, hint):
        if (by_name := getattr(self, f"_{name}", None)) is not None:
            return by_name()
        if hint == tuple[int, ...]:
            return (self.chance.randint(0, 3),)
        if hint == tuple[VaultSlot, ...]:
            return self._told(self._node()).slots
        optional = type(None) in get_args(hint)
        if optional and self.chance.random() < 0.3:
            return None
        for kind, draw in (
            (bool, lambda: self.chance.random() < 0.5),
            (int, lambda: self.chance.randint(0, 4)),
            (float, lambda: self.chance.choice([0.0, 0.6, 30.0, 1e9])),
            (str, lambda: self.chance.choice(["", "a word"])),
        ):
            if hint is kind or kind in get_args(hint):
                return draw()
        return ()

    def _worker(self):
        return self.chance.choice([*self.state.roster.workers, "worker-0", "worker-99"])

    def _node(self):
        return self.chance.choice([*self.state.roster.nodes, *NODES])

    def _generation(self):
        return max(0, self.state.last_generation + self.chance.choice([0, 0, 0, -1, 1]))

    def _step(self):
        return max(0, self.state.step + self.chance.choice([0, 0, 1, 2, -1, -5]))

    def _at_step(self):
        return self._step()

    def _held_in(self):
        return self._generation()

    def _records(self):
        first = max(1, self.state.step + self.chance.choice([1, 1, 1, 0, 3]))
        return records(first, first + self.chance.randint(-1, 4), 0.0)

    def _files(self):
        return (ShardFile(name=self._worker(), size_bytes=1, digest="0"),)

    def _device(self):
        return self.chance.randint(0, 3) if self.devices else None

    def _ladder(self):
        return self.chance.choice(LADDERS)

    def _layout(self):
        return self.chance.choice([None, asked("tp=2"), asked("pp=2,ep=4")])

    def _changes(self):
        return (Amendment(step=self._step() or 1, key="train.lr", old=0.1, new=0.05),)

    def _name(self):
        life = self.state.generations[-1:]
        labels = [source_label(one.restore) for one in life]
        labels += [slot_label(each) for one in life for each in slots_of(one.restore)]
        return self.chance.choice([*labels, "step-20.gen-1", ""])

    def _likely(self):
        """What a healthy cluster says in the present phase."""
        state = self.state
        starting = [w for w in state.roster.workers.values() if w.state == "starting"]
        ready = [self._ready(worker) for worker in starting]
        told = [self._told(node) for node in sorted(state.vaults.awaited)]
        if not state.generations:
            return ready
        unparked = sorted(state.current.unparked & state.roster.workers.keys())
        at = {"at_step": state.current.from_step, "restore_s": 0.1}
        of_member = {
            Phase.FORMING: lambda w: self._of_member(ev.WorkerFormed, w, form_s=0.1),
            Phase.RESTORING: lambda w: self._of_member(ev.WorkerRestored, w, **at),
            Phase.RUNNING: self._trained,
            Phase.DRAINING: lambda w: self._parked(w, drained=True),
            Phase.FENCING: lambda w: self._parked(w, drained=False),
        }
        more = self._saved() if state.phase in (Phase.RUNNING, Phase.DRAINING) else told
        said = of_member.get(state.phase)
        return ready + more + [said(worker) for worker in unparked if said]

    def _ready(self, worker):
        device = worker.slot if self.devices else None
        if self.devices and self.chance.random() < 0.2:
            device = self.chance.choice([None, worker.slot ^ 1])
        return ev.WorkerReady(worker=worker.name, node=worker.node, pid=1, device=device)

    def _of_member(self, kind, worker, **values):
        return kind(worker=worker, generation=self.state.last_generation, **values)

    def _trained(self, worker):
        first = self.state.current.heard_step + 1
        done = records(first, first + self.chance.randint(0, 9), 0.0)
        return self._of_member(ev.StepsDone, worker, records=done)

    def _parked(self, worker, *, drained):
        values = {"at_step": self.state.step, "drained": drained}
        values["held_in"] = self.state.last_generation
        return self._of_member(ev.WorkerParked, worker, **values)

    def _saved(self):
        """Files of a checkpoint, and the answer to a commit that is asked for."""
        state = self.state
        generation, step = state.current.held_save or (state.last_generation, state.step)
        members = [m.worker for m in state.current.members if m.worker in state.roster.workers]
        said = [
            ev.FilesSaved(worker=w, generation=generation, step=step, files=self._files())
            for w in members
        ]
        for (of, at_step), save in state.checkpoints.saves.items():
            if save.is_under_way:
                name = f"step-{at_step}.gen-{of}"
                said.append(ev.CheckpointCommitted(generation=of, step=at_step, name=name))
        return said

    def _told(self, node):
        state, slots = self.state, []
        for life in state.generations[-1:]:
            part = held(self.chance.randrange(life.layout.world_size), layout=life.layout)
            slots = [slot(node, part, life.heard_step, life.generation)]
        return ev.VaultTold(node=node, generation=state.last_generation, slots=tuple(slots))
