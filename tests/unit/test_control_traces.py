"""Golden traces: what happens, in a few words a line, and below it what the controller decides.

A line with a moment is an event, an indented line the answer. To accept new answers, run the test
with REMESH_REWRITE_TRACES=1 and read the difference.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from control_values import options, records, slot
from ladders import mixed

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import encode, replay
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import PeerState
from remesh.orchestrator.control.words.recovery import slot_label
from remesh.parallel.state.root_manifest import ShardFile

TRACES = sorted((Path(__file__).parent.parent / "traces").glob("*.txt"))


def span(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def trained(text, now_s):
    steps = span(text)
    numbers = {"loss": 5.0, "lr": 0.001, "tokens": 3072, "samples": 24}
    return records(steps.start, steps.stop - 1, now_s, **numbers)


@dataclass(frozen=True)
class Line:
    """One line: a word for the kind, names (`all`: the newest generation's), key=value options."""

    names: list[str]
    options: dict[str, str]
    now_s: float
    state: State

    @property
    def step(self):
        return int(self.options["at"]) if "at" in self.options else None

    @property
    def held_in(self):
        return int(self.options.get("in", self.generation))

    @property
    def records(self):
        text = self.options.get("records")
        return trained(text, self.now_s) if text else ()

    @property
    def death(self):
        died_at_s = float(self.options["died"]) if "died" in self.options else None
        return {"cause": self.options.get("cause", "SIGKILL"), "died_at_s": died_at_s}

    @property
    def generation(self):
        return int(self.options.get("generation", self.state.last_generation))

    def nodes(self, kind, **values):
        return [kind(node=name, **values) for name in self.names]

    def workers(self, kind, **values):
        return [kind(worker=name, **values) for name in self.names]

    def members(self, kind, **values):
        return self.workers(kind, generation=self.generation, **values)


def joined(line):
    slots, host = int(line.options["slots"]), line.options.get("host", "")
    return [
        ev.NodeJoined(node=name, slots=slots, head=name == "head", host=host) for name in line.names
    ]


def draining(line):
    until_s = float(line.options["until"]) if "until" in line.options else None
    return line.nodes(ev.NodeDraining, cause="Ray drains it", deadline_s=until_s)


def ready(line):
    workers = [line.state.roster.workers[name] for name in line.names]
    return [ev.WorkerReady(worker=w.name, node=w.node, pid=w.number) for w in workers]


def steps(line):
    rank_0 = line.state.current.members[0].worker
    done = trained(line.names[0], line.now_s)
    return [ev.StepsDone(worker=rank_0, generation=line.generation, records=done)]


def parked(line, *, drained):
    held = {"at_step": line.step, "held_in": line.held_in, "records": line.records}
    return line.members(ev.WorkerParked, drained=drained, **held)


def restored(line):
    from_step = line.state.current.from_step
    return line.members(ev.WorkerRestored, at_step=from_step, restore_s=0.01)


def saved(line):
    file = ShardFile(name="part.safetensors", size_bytes=1, digest="0")
    return line.members(ev.FilesSaved, step=line.step, files=(file,))


def committed(line):
    name = f"step-{line.step}.gen-{line.generation}"
    return [ev.CheckpointCommitted(generation=line.generation, step=line.step, name=name)]


def told(line):
    """What a vault holds: words such as 2@23 for rank 2 at step 23, of the generation `in`."""
    life = line.state.life(line.held_in)
    slots = []
    for word in line.names[1:]:
        rank, step = map(int, word.split("@"))
        part = life.rung.held_by(rank)
        slots.append(slot(line.names[0], part, step, life.generation))
    return [ev.VaultTold(node=line.names[0], generation=line.generation, slots=tuple(slots))]


def unreadable(line):
    """A slot of the newest generation that cannot be read, if there is one: the first."""
    slots = getattr(line.state.current.restore, "slots", ())
    name = slot_label(slots[0]) if slots else ""
    return line.members(ev.RestoreFailed, name=name, error="hash differs")


def broken(line):
    """`waited` is the rank that it waited for in vain, if it knows."""
    waited_for = tuple(map(int, line.options.get("waited", "").split()))
    return line.members(ev.GroupBroken, error="connection reset", waited_for=waited_for)


def stuck(line):
    """Before an operation of the step after `at`."""
    where = {"step": line.step, "operation": int(line.options["operation"]), "phase": "waiting"}
    return line.members(ev.WorkerStuck, silent_s=5.5, **where)


def stop(line):
    """Of the user, unless `by` says another; `now` for one that does not wait."""
    by = line.options.get("by", "user")
    until_s = float(line.options["until"]) if "until" in line.options else None
    return [
        ev.StopRequested(
            reason=f"stopped by the {by}", wish=by, at_once="now" in line.names, deadline_s=until_s
        )
    ]


def ladder_changed(line):
    """One flight a word, such as tp:2,max_dp:2."""
    flights = [dict(pair.split(":") for pair in word.split(",")) for word in line.names]
    numbers = [{key: int(value) for key, value in words.items()} for words in flights]
    return [ev.LadderChanged(ladder=mixed(*numbers), reason="memory runs short")]


CORRUPT = "block 3 of shard-0.arrow is corrupt"
KINDS = {
    "start": lambda _: [ev.RunStarted()],
    "restarted": lambda line: [ev.ControllerRestarted(down_s=float(line.options["down"]))],
    "stood-still": lambda line: [ev.StoodStill(for_s=float(line.options["for"]))],
    "tick": lambda _: [ev.Tick()],
    "stop": stop,
    "joined": joined,
    "draining": draining,
    "scale": lambda line: [ev.ScaleRequested(nodes=int(line.names[0]))],
    "ladder": ladder_changed,
    "silent": lambda line: line.nodes(ev.NodeSilent, silent_s=0.5),
    "refused": lambda line: line.nodes(ev.NodeRefused, broken_s=line.now_s),
    "node-lost": lambda line: line.nodes(ev.NodeLost, **line.death),
    "vault-up": lambda line: line.nodes(ev.VaultUp, address="10.0.0.1:7"),
    "vault-lost": lambda line: line.nodes(ev.VaultLost),
    "told": told,
    "ready": ready,
    "lost": lambda line: line.workers(ev.WorkerLost, **line.death),
    "frozen": lambda line: line.workers(ev.WorkerFrozen, silent_s=0.6),
    "stuck": stuck,
    "broken": broken,
    "formed": lambda line: line.members(ev.WorkerFormed, form_s=0.005),
    "restored": restored,
    "unreadable": unreadable,
    "steps": steps,
    "parked": lambda line: parked(line, drained=False),
    "drained": lambda line: parked(line, drained=True),
    "saved": saved,
    "committed": committed,
    "uncommitted": lambda line: [
        ev.CommitFailed(generation=line.generation, step=line.step, error="disk is full")
    ],
    "errs": lambda line: line.members(ev.WorkerErred, error="EIO", user_error=False),
    "unsaved": lambda line: line.members(ev.SaveFailed, step=line.step, error="disk is full"),
    "user-error": lambda line: line.members(ev.WorkerErred, error=CORRUPT, user_error=True),
}


def events_of(words, now_s, state):
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    names = [word for word in words[1:] if "=" not in word]
    if names == ["all"]:
        names = [m.worker for m in state.current.members if m.worker in state.roster.workers]
    return KINDS[words[0]](Line(names, options, now_s, state))


def form(command):
    ranks = ", ".join(f"{m.worker}@{m.at_step}" for m in command.members)
    source = command.restore
    restore = type(source).__name__
    if isinstance(source, PeerState):
        slots = [f"{s.held.shard}@{s.step} in {s.vault}" for s in source.slots]
        live = [] if source.source is None else [f"rank {source.source}"]
        restore += f" from {', '.join(live + slots)}"
    return f"form {command.generation} from step {command.from_step} {restore}: {ranks}"


def fence(command):
    workers = ", ".join(command.workers)
    return f"fence {command.generation} heard {command.heard_step}: {workers}"


def drain(command):
    save = " and save" if command.save else ""
    return f"drain {command.generation}{save}: {', '.join(command.workers)}"


ANSWERS = {
    cmd.StartWorker: lambda c: f"start {c.worker} on {c.node}",
    cmd.EndWorker: lambda c: f"end {c.worker} on {c.node}: {c.reason}",
    cmd.ReleaseNode: lambda c: f"release {c.node}",
    cmd.Form: form,
    cmd.Fence: fence,
    cmd.AskVaults: lambda c: f"ask vaults after {c.generation}: {', '.join(c.nodes)}",
    cmd.Drain: drain,
    cmd.SaveHeld: lambda c: f"save held step {c.step} of {c.generation}: {', '.join(c.workers)}",
    cmd.Commit: lambda c: f"commit step {c.step} of {c.generation}: {len(c.files)} files",
    cmd.Announce: lambda c: f'"{c.text}"',
    cmd.End: lambda c: f"END {c.status}: {c.reason}",
}


def options_of(line):
    words = dict(word.split("=") for word in line.split()[1:])
    numbers = {key: float(value) if "." in value else int(value) for key, value in words.items()}
    return options(**numbers)


def play(text):
    """The trace again, with the answers of today's controller."""
    controller, lines, journal = None, [], []
    for line in text.splitlines():
        if line.startswith("options"):
            controller = Controller(options_of(line))
        if line.startswith(" "):
            continue
        lines.append(line)
        moment, _, rest = line.partition(" ")
        if not moment.replace(".", "").isdigit():
            continue
        before = controller.state.phase
        for event in events_of(rest.split(), float(moment), controller.state):
            journal.append(encode(event, float(moment)))
            commands = controller.handle(event, float(moment))
            lines.extend(f"      {ANSWERS[type(command)](command)}" for command in commands)
        if controller.state.phase is not before:
            lines.append(f"      -> {controller.state.phase}")
    assert replay(journal, controller.options).state == controller.state
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_decides_as_in_the_golden_trace(path):
    written = path.read_text()
    played = play(written)
    if os.environ.get("REMESH_REWRITE_TRACES"):
        path.write_text(played)
    assert played == written


def test_there_are_traces():
    assert len(TRACES) >= 6
