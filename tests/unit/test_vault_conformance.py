"""Vaults of a run of a real cluster, played again: each has told what may be there."""

from dataclasses import replace

import pytest
from test_conformance import first, recorded

from remesh.orchestrator.control.words.events import VaultTold
from remesh.orchestrator.worker.conformance import ConformanceError
from remesh.orchestrator.worker.vault_conformance import check_vaults

RUN = "killed_worker_with_vaults"


def test_each_vault_of_a_real_run_has_told_what_its_ranks_have_left_there():
    options, events = recorded(RUN)
    told = [event for _, event, _ in events if isinstance(event, VaultTold)]
    assert {event.node for event in told} == {slot.vault for e in told for slot in e.slots}
    assert check_vaults(options, events) == sum(len(event.slots) for event in told) > 10


@pytest.mark.parametrize("name", ["killed_worker", "killed_node", "frozen_worker", "stopped"])
def test_a_run_without_snapshots_has_nothing_in_vaults(name):
    assert check_vaults(*recorded(name)) == 0


def changed(change):
    """The run with other slots in the first answer of a vault."""
    options, events = recorded(RUN)
    place = first(events, VaultTold)
    number, told, at_s = events[place]
    events[place] = (number, replace(told, slots=tuple(change(list(told.slots)))), at_s)
    return options, events


def of_step(slots, step):
    return [replace(slots[0], step=step), *slots[1:]]


CHANGES = {
    "a step of which there was no snapshot": lambda slots: of_step(slots, 5),
    "a step that was written over": lambda slots: of_step(slots, 2),
    "another generation": lambda slots: [replace(slots[0], generation=2), *slots[1:]],
    "another vault": lambda slots: [replace(slots[0], vault="elsewhere"), *slots[1:]],
    "a part that nobody holds": lambda slots: [
        replace(slots[0], held=replace(slots[0].held, shard=9)),
        *slots[1:],
    ],
    "one slot twice": lambda slots: [slots[0], *slots],
    "the order of its slots": lambda slots: [slots[1], slots[0], *slots[2:]],
    "no stable step": lambda slots: [slot for slot in slots if slot.step != 4],
    "nothing at all": lambda _: [],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_answer_is_refused(change):
    with pytest.raises(ConformanceError, match=r"line \d+: the vault of "):
        check_vaults(*changed(CHANGES[change]))


def test_what_was_not_sealed_in_time_may_be_missing():
    newest = 7
    options, events = changed(lambda slots: [slot for slot in slots if slot.step != newest])
    assert check_vaults(options, events) > 0
