"""Runs of a real cluster, played again: each worker has said what its machine says.

They are journals of `remesh run tests/cluster/short.toml --nodes 2` with 24 steps or some more and
a checkpoint every 10: with `--kill worker@8`, with `--kill node@8`, with a worker that got a
SIGSTOP, with `remesh stop`, and with snapshots under zero.stage=3. A controller that decides
otherwise needs new ones.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from remesh.orchestrator.control.journal import decode_opened, handled
from remesh.orchestrator.control.words.events import (
    FilesSaved,
    NodeLost,
    StepsDone,
    WorkerFormed,
    WorkerLost,
    WorkerParked,
    WorkerRestored,
)
from remesh.orchestrator.control.words.sealed_lines import unsealed
from remesh.orchestrator.worker.conformance import ConformanceError, SaidByWorker, check

RECORDED = Path(__file__).parents[1] / "traces" / "recorded"
SAVE_EVERY = 10  # of all these runs
NAMES = sorted(path.stem for path in RECORDED.glob("*.jsonl"))


def recorded(name):
    """The options of a recorded run, and all its events."""
    lines, total = [], 0
    for line in (RECORDED / f"{name}.jsonl").read_text().splitlines():
        plain, total = unsealed(line, total)
        lines.append(plain)
    opened = decode_opened(json.loads(lines[0]), name)
    return opened.options, list(handled(lines[1:]))


def first(events, kind, **values):
    for place, (_, event, _) in enumerate(events):
        if isinstance(event, kind) and all(getattr(event, k) == v for k, v in values.items()):
            return place
    raise AssertionError(f"there is no {kind.__name__} with {values}")


@pytest.mark.parametrize("name", NAMES)
def test_each_worker_of_a_real_run_has_said_what_its_machine_says(name):
    options, events = recorded(name)
    said = check(options, SAVE_EVERY, events)
    assert said == sum(isinstance(event, SaidByWorker) for _, event, _ in events)
    assert said > 20


def test_what_befell_them_is_in_the_recorded_runs():
    assert set(NAMES) >= {"killed_worker", "killed_node", "frozen_worker", "stopped"}
    for name in ("killed_worker", "frozen_worker"):
        assert first(recorded(name)[1], WorkerLost)
    assert first(recorded("killed_worker")[1], WorkerParked, drained=False)
    assert first(recorded("killed_node")[1], NodeLost)
    assert first(recorded("stopped")[1], WorkerParked, drained=True)


CHANGES = {
    "formed twice": (WorkerFormed, lambda event: [event, event]),
    "a mesh that it is not in": (
        WorkerFormed,
        lambda event: [replace(event, generation=event.generation + 1)],
    ),
    "another step": (WorkerRestored, lambda event: [replace(event, at_step=event.at_step + 1)]),
    "restored twice": (WorkerRestored, lambda event: [event, event]),
    "a step left out": (StepsDone, lambda event: [replace(event, records=event.records[1:])]),
    "steps told twice": (StepsDone, lambda event: [event, event]),
    "files of a step that it does not save": (
        FilesSaved,
        lambda event: [replace(event, step=event.step - 1)],
    ),
    "files told twice": (FilesSaved, lambda event: [event, event]),
    "parked at a step that it has not trained": (
        WorkerParked,
        lambda event: [replace(event, at_step=event.at_step + 1)],
    ),
    "state of a mesh that it was not in": (
        WorkerParked,
        lambda event: [replace(event, held_in=event.held_in + 1)],
    ),
    "fenced in place of drained": (
        WorkerParked,
        lambda event: [replace(event, drained=not event.drained)],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_line_is_refused(change):
    kind, changed = CHANGES[change]
    options, events = recorded("stopped")
    place = first(events, kind)
    number, event, at_s = events[place]
    if change == "a step left out":
        place = first(events, kind, records=longest(events))
        number, event, at_s = events[place]
    new = [(number, one, at_s) for one in changed(event)]
    with pytest.raises(ConformanceError, match=r"line \d+: "):
        check(options, SAVE_EVERY, events[:place] + new + events[place + 1 :])


def longest(events):
    return max((e.records for _, e, _ in events if isinstance(e, StepsDone)), key=len)


def test_who_was_never_started_says_nothing():
    options, events = recorded("stopped")
    place = first(events, WorkerFormed)
    number, event, at_s = events[place]
    events[place] = (number, replace(event, worker="worker-77"), at_s)
    with pytest.raises(ConformanceError, match="worker-77"):
        check(options, SAVE_EVERY, events)
