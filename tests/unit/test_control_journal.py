"""Journal and ledger: what is written can be read, and proves what was trained."""

import math
from dataclasses import fields, replace
from typing import get_args

import pytest

from remesh.orchestrator.accounts.ledger import Ledger, Span
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.records import StepRecord, VaultSlot
from remesh.parallel.plan.cut import held_by
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.step_result import StepResult
from remesh.parallel.state.root_manifest import ShardFile

OPTIONS = Options(steps=10, max_dp=1)


def record(step, digest=None, samples=4):
    return StepRecord(
        step=step,
        did=StepResult(
            loss=1.0 / 3.0 + step,
            grad_norm=1e-300,
            lr=0.003,
            tokens=512,
            samples=samples,
            digest=digest or f"d{step}",
            applied=True,
        ),
        step_s=0.1,
        ended_s=1.5,
    )


def steps(generation, *numbers, **changes):
    records = tuple(record(number, **changes) for number in numbers)
    return ev.StepsDone(worker="worker-0", generation=generation, records=records)


EXAMPLES = {
    str: 'a line\nwith "marks" and ü',
    int: 7,
    float: 0.1 + 0.2,
    bool: True,
    float | None: None,
    int | None: 12,
    tuple[StepRecord, ...]: (record(1), record(2)),
    tuple[ShardFile, ...]: (ShardFile(name="a", size_bytes=3, digest="f"),),
    tuple[VaultSlot, ...]: (
        VaultSlot(
            vault="b",
            held=held_by(Layout(dp=2, tp=2), 2, 3),
            generation=2,
            step=9,
        ),
    ),
}


@pytest.mark.parametrize("kind", get_args(ev.Event), ids=lambda kind: kind.__name__)
def test_every_event_comes_back_as_it_was_written(kind):
    event = kind(**{field.name: EXAMPLES[field.type] for field in fields(kind)})
    line = journal.encode(event, 1700000000.123456)
    assert "\n" not in line
    assert journal.decode(line) == (event, 1700000000.123456)


def test_losses_keep_every_bit_and_a_missing_number_too():
    broken = steps(1, 1)
    worst = [math.nan, math.inf, -0.0, 5e-324, 1.7976931348623157e308]
    for loss in worst:
        before = broken.records[0]
        changed = replace(before, did=replace(before.did, loss=loss))
        event = ev.StepsDone(worker="w", generation=1, records=(changed,))
        decoded, _ = journal.decode(journal.encode(event, 0.0))
        assert repr(decoded.records[0].did.loss) == repr(loss)


def test_an_event_of_a_newer_version_is_passed_over_and_so_are_its_fields():
    lines = [
        '{"at_s":1.0,"event":"SomethingNew","colour":"red"}',
        '{"at_s":2.0,"event":"NodeJoined","node":"a","slots":1,"racks":7}',
    ]
    assert list(journal.read(lines)) == [(ev.NodeJoined(node="a", slots=1), 2.0)]


def test_a_last_line_cut_short_is_passed_over_one_in_the_middle_is_an_error():
    lines = [journal.encode(ev.NodeJoined(node=name, slots=1), 1.0) for name in "abc"]
    cut = [*lines[:2], lines[2][:-9]]
    assert journal.replay(cut, OPTIONS).state.roster.nodes.keys() == {"a", "b"}
    with pytest.raises(journal.JournalError, match="not a line of a journal"):
        list(journal.read([lines[0][:-9], lines[1]]))


def account(ledger, lineage, last):
    span = Span(first=0, last=last, global_batch=4)
    return ledger.samples(lineage, span, lambda step: f"d{step}")


def test_a_run_without_faults_adds_up():
    ledger, lineage = Ledger(), Lineage()
    lineage.begin(1, 0)
    ledger.note(steps(1, 1, 2))
    ledger.note(steps(1, 3))
    samples = account(ledger, lineage, 3)
    assert (samples.expected, samples.consumed, samples.lost, samples.repeated) == (12, 12, 0, 0)


def test_a_step_trained_again_counts_once_and_the_digest_is_that_of_a_run_without_faults():
    plain, lineage = Ledger(), Lineage()
    lineage.begin(1, 0)
    plain.note(steps(1, 1, 2, 3))
    whole = account(plain, lineage, 3)
    ledger = Ledger()
    ledger.note(steps(1, 1, 2, 3))
    lineage.begin(2, 1)
    ledger.note(steps(2, 2))
    ledger.note(
        ev.WorkerParked(
            worker="w", generation=2, at_step=3, drained=True, records=(record(2), record(3))
        )
    )
    ledger.note(steps(2, 2))
    assert account(ledger, lineage, 3) == whole


def test_missing_and_wrong_steps_show():
    ledger, lineage = Ledger(), Lineage()
    lineage.begin(1, 0)
    ledger.note(steps(1, 1))
    ledger.note(steps(1, 3, digest="d2"))
    samples = account(ledger, lineage, 3)
    assert (samples.consumed, samples.lost, samples.repeated) == (8, 8, 4)


def test_a_step_trained_on_top_of_a_state_that_held_it_is_repeated():
    ledger, lineage = Ledger(), Lineage()
    lineage.begin(1, 0)
    ledger.note(steps(1, 1, 2))
    lineage.begin(2, 2)
    ledger.note(steps(2, 2, 3))
    samples = account(ledger, lineage, 3)
    assert (samples.lost, samples.repeated) == (0, 4)


def test_runs_of_one_job_add_up_over_their_journals():
    ledger, lineage = Ledger(), Lineage()
    for generation, from_step, done in ((1, 0, (1, 2, 3)), (2, 2, (3, 4)), (3, 4, (5,))):
        lineage.begin(generation, from_step)
        ledger.note(steps(generation, *done))
    samples = account(ledger, lineage, 5)
    assert (samples.consumed, samples.lost, samples.repeated) == (20, 0, 0)
    trained = ledger.trained(lineage, Span(first=0, last=6, global_batch=4))
    assert [found and found.step for found in trained] == [1, 2, 3, 4, 5, None]
