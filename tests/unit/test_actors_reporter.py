import time
from dataclasses import replace

from remesh.actors.worker.reporter import PARK_MARGIN_S, REMEMBERED, Reporter
from remesh.orchestrator.control.words.events import StepsDone
from remesh.orchestrator.control.words.records import StepRecord
from remesh.parallel.plan.step_result import StepResult

RECORD = StepRecord(
    step=1,
    did=StepResult(
        loss=1.0,
        grad_norm=1.0,
        lr=1e-3,
        tokens=8,
        samples=2,
        digest="0",
        applied=True,
    ),
    step_s=0.1,
    ended_s=0.0,
)


def record(step, *, age_s=0.0):
    return replace(RECORD, step=step, ended_s=time.time() - age_s)


def reporter():
    posted = []
    return Reporter(worker="worker-0", post=posted.append), posted


def test_the_first_record_goes_at_once_the_next_ones_together():
    rank_0, posted = reporter()
    rank_0.enter(3, reports=True)
    records = [record(step) for step in (1, 2, 3)]
    for one in records:
        rank_0.add(one)
    assert posted == [StepsDone(worker="worker-0", generation=3, records=(records[0],))]
    rank_0.flush()
    rank_0.flush()
    assert posted[1:] == [StepsDone(worker="worker-0", generation=3, records=tuple(records[1:]))]


def test_messages_do_not_grow_with_the_step_rate():
    rank_0, posted = reporter()
    rank_0.enter(1, reports=True)
    for step in range(1, 1001):
        rank_0.add(record(step))
    assert len(posted) <= 2


def test_the_other_ranks_only_remember():
    other, posted = reporter()
    other.enter(3, reports=False)
    records = [record(step) for step in (5, 6, 7)]
    for one in records:
        other.add(one)
    other.flush()
    assert posted == []
    assert other.since(5) == tuple(records[1:])
    assert other.since(7) == ()


def test_without_a_step_that_was_heard_of_the_last_seconds_count():
    rank_0, _ = reporter()
    rank_0.enter(1, reports=True)
    old, young = record(1, age_s=PARK_MARGIN_S + 1), record(2)
    rank_0.add(old)
    rank_0.add(young)
    assert rank_0.since(None) == (young,)


def test_memory_is_bounded_to_the_newest_steps():
    other, _ = reporter()
    other.enter(1, reports=False)
    for step in range(1, REMEMBERED + 11):
        other.add(replace(RECORD, step=step))
    assert [one.step for one in other.since(0)] == list(range(11, REMEMBERED + 11))


def test_steps_of_an_abandoned_generation_are_never_told_as_the_next_ones():
    rank_0, posted = reporter()
    rank_0.enter(1, reports=True)
    for step in (41, 42, 43):
        rank_0.add(record(step))
    rank_0.enter(2, reports=True)  # from the checkpoint at 40
    assert rank_0.since(40) == rank_0.since(None) == ()
    again = record(41)
    rank_0.add(again)
    assert rank_0.since(40) == (again,)
    assert [event.generation for event in posted] == [1, 2]
    assert [one for event in posted for one in event.records][1:] == [again]
