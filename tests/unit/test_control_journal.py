"""Journal and ledger: what is written can be read, and proves what was trained."""

import math

import pytest
from control_values import options, record

from remesh.orchestrator.accounts.ledger import Ledger, Span
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.codec_plans import CodecError
from remesh.orchestrator.control.words.sealed_lines import sealed, sum_of

OPTIONS = options(max_dp=1)


def odd(step, **values):
    """A record whose numbers are hard to write."""
    return record(step, **{"loss": 1.0 / 3.0 + step, "grad_norm": 1e-300, **values})


def steps(generation, *numbers, **changes):
    records = tuple(odd(number, **changes) for number in numbers)
    return ev.StepsDone(worker="worker-0", generation=generation, records=records)


def test_losses_keep_every_bit_and_a_missing_number_too():
    worst = [math.nan, math.inf, -0.0, 5e-324, 1.7976931348623157e308]
    for loss in worst:
        event = steps(1, 1, loss=loss)
        decoded = journal.decode(journal.encode(event, 0.0)).told
        assert repr(decoded.records[0].did.loss) == repr(loss)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"at_s":1.0,"told":{"is":"SomethingNew","colour":"red"}}', "found 'SomethingNew'"),
        ('{"at_s":1.0,"told":{"is":"Tick","racks":7}}', "Tick has no 'racks'"),
        ('{"at_s":1.0,"told":{"is":"NodeLost","node":"a"}}', "'cause' of NodeLost is missing"),
        ('{"at_s":"1","told":{"is":"Tick"}}', "at_s: expected float"),
        ('{"at_s":1.0,"event":"Tick"}', "Entry has no 'event'"),
        ("[]", "expected Entry"),
    ],
)
def test_a_whole_line_that_is_none_is_refused_wherever_it_stands(line, reason):
    """No version reads another's; so nothing in a journal is passed over."""
    for lines in ([line], [line, GOOD], [GOOD, line]):
        with pytest.raises(journal.JournalError, match=reason) as refused:
            list(journal.read(lines))
        assert "\n" not in str(refused.value)


GOOD = journal.encode(ev.Tick(), 1.0)


def test_what_could_not_be_replayed_is_not_written():
    with pytest.raises(CodecError, match=r"told\.slots: expected int, found '2'"):
        journal.encode(ev.NodeJoined(node="a", slots="2"), 1.0)


def test_events_are_read_from_between_sentences_and_snapshots():
    told = [ev.Tick(), journal.Announced(text="so"), journal.Remembered(values={"a": [1]})]
    lines = [journal.encode(one, 1.0) for one in (*told, ev.RunStarted())]
    assert list(journal.read(lines)) == [(ev.Tick(), 1.0), (ev.RunStarted(), 1.0)]
    assert [entry.told for entry in journal.entries(lines)][:3] == told


@pytest.mark.parametrize("text", ["", "{", '{"at_s":1.0,"told":{"is":"Ti', "[" * 100_000])
def test_a_last_line_cut_short_is_passed_over_one_in_the_middle_is_an_error(text):
    lines = [journal.encode(ev.NodeJoined(node=name, slots=1), 1.0) for name in "ab"]
    assert journal.replay([*lines, text], OPTIONS).state.roster.nodes.keys() == {"a", "b"}
    with pytest.raises(journal.JournalError, match="not a line of a journal"):
        list(journal.read([text, lines[0]]))


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
            worker="w", generation=2, at_step=3, drained=True, held_in=2, records=(odd(2), odd(3))
        )
    )
    ledger.note(steps(2, 2))
    assert account(ledger, lineage, 3) == whole


def test_a_line_that_carries_no_sum_has_none():
    line, total = sealed('{"step": 7}', 12)
    assert sum_of(line) == total
    with pytest.raises(ValueError, match="no checksum"):
        sum_of(line.replace('"crc"', '"sum"'))


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
