"""A snapshot is the state itself: nothing is left out, and nothing else can be named."""

import json

import pytest
from tallied_drive import tallied, through_everything

from remesh.orchestrator.accounts.snapshot import Snapshot, decode, encode
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.codec_plans import CodecError


def over_json(snapshot):
    return decode(json.loads(json.dumps(encode(snapshot))))


@pytest.mark.parametrize("drive", [through_everything(), tallied(5)], ids=["all", "short"])
def test_what_was_written_is_read_in_its_order(drive):
    drive.do(ev.NodeLost(node="b", cause="power", died_at_s=0.1 + 0.2))
    snapshot = Snapshot(state=drive.state, tally=drive.tally)
    again = over_json(snapshot)
    assert again == snapshot
    assert list(again.state.roster.workers) == list(drive.state.roster.workers)
    assert again.tally.saves.recent.maxlen == drive.tally.saves.recent.maxlen


def test_a_machine_goes_on_from_it_as_it_would_have():
    drive, other = tallied(5), tallied(5)
    there = over_json(Snapshot(state=drive.state, tally=drive.tally))
    other.controller.state, other.tally = there.state, there.tally
    for one in (drive, other):
        one.steps(9)
        one.lose("worker-1")
        one.park(9)
        one.train(12)
    assert (other.state, other.tally) == (drive.state, drive.tally)
    assert other.commands == drive.commands


@pytest.mark.parametrize(
    "values",
    [
        None,
        {},
        [],
        {"is": "Popen"},
        {"state": 1, "tally": {}},
        {"state": {}, "tally": {}},
    ],
)
def test_what_is_none_is_refused(values):
    with pytest.raises(CodecError):
        decode(values)


def test_one_of_a_version_with_other_fields_is_refused():
    values = encode(Snapshot(state=State(), tally=Tally()))
    del values["state"]["roster"]["num_used"]
    with pytest.raises(CodecError, match="'num_used' of Roster is missing"):
        decode(values)


def test_an_empty_one_is_small():
    values = encode(Snapshot(state=State(), tally=Tally()))
    assert len(json.dumps(values)) < 5000
