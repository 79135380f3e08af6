"""Faults on order: what is asked for, where it strikes, and what is refused with the cure."""

from typing import get_args

import pytest

from remesh.orchestrator.job.faults_on_order import (
    KINDS,
    MOMENTS,
    Moment,
    OrderedFault,
    check_faults,
    parse_fault,
    parse_kill,
)
from remesh.orchestrator.sim.mishaps.strikes import STRIKES
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.schedules.operations import Operation

NOT_SIMULATED = {"slow", "disconnect"}


def moment(**more):
    where = {"generation": 2, "step": 20, "rank": 1, "is_last_rank": False, "is_node_victim": False}
    return Moment(**{**where, **more})


def test_a_kill_names_its_target_and_the_step_that_begins():
    asked = OrderedFault(kind="kill", asked="--kill worker@20", step=20)
    assert parse_kill("worker@20") == asked
    assert parse_kill("node@1") == OrderedFault(kind="kill-node", asked="--kill node@1", step=1)


@pytest.mark.parametrize("text", ["", "worker", "worker@", "disk@3", "@3", "worker 3", "Worker@3"])
def test_other_targets_are_refused_with_the_form(text):
    with pytest.raises(UserError, match=r"expected .*@"):
        parse_kill(text)


@pytest.mark.parametrize("step", ["0", "-1", "x", "1.5", "٣", " 3", "3 ", "1_0"])
def test_steps_are_counted_from_one(step):
    with pytest.raises(UserError, match="expected a step from 1"):
        parse_kill(f"worker@{step}")
    with pytest.raises(UserError, match="expected a whole number from 1"):
        parse_fault(f"kill@step={step}")


def test_a_fault_says_where_it_strikes_and_for_how_long():
    text = "freeze@step=20,rank=1,generation=2,operation=forward,for=2.5"
    assert parse_fault(text) == OrderedFault(
        kind="freeze", asked=f"--fault {text}", step=20, rank=1, generation=2,
        operation="forward", for_s=2.5,
    )  # fmt: skip
    slow = parse_fault("slow@generation=1,times=3,steps=4,rank=0")
    assert (slow.step, slow.times, slow.steps, slow.rank) == (None, 3.0, 4, 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "nothing is no fault; expected kill, freeze"),
        ("kill", "nothing after the @; expected KEY=VALUE"),
        ("kill@", "nothing after the @; expected KEY=VALUE"),
        ("kill@rank=1", "expected a step or a generation, such as kill@step=20"),
        ("kill@step", "step after the @"),
        ("kill@step=1,step=2", "at most once"),
        ("kill@step=1,for=2", "for=2 after the @"),
        ("kill-node@step=1,rank=0", "rank=0 after the @"),
        ("kill-controller@step=1,operation=vote", "operation=vote after the @"),
        ("kill@step=1,rank=-1", "rank=-1: expected a whole number from 0"),
        ("kill@step=9999999999999", "expected a whole number from 1"),
        ("freeze@step=1,for=0", "for=0: expected a number above 0"),
        ("freeze@step=1,for=inf", "for=inf: expected a number above 0"),
        ("freeze@step=1,for=1.2.3", "for=1.2.3: expected a number above 0"),
        ("kill@step=1,operation=dance", "expected begin, forward, backward"),
    ],
)
def test_what_is_no_fault_is_refused_with_what_was_seen_and_expected(text, told):
    with pytest.raises(UserError) as refused:
        parse_fault(text)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_kinds_are_those_of_the_simulator_or_are_not_simulated():
    names = {kind.replace("-", " ") for kind in KINDS}
    assert names - NOT_SIMULATED <= STRIKES.keys()
    assert not names & NOT_SIMULATED & STRIKES.keys()


def test_every_operation_of_a_schedule_can_be_named():
    assert {kind.__name__.lower() for kind in get_args(Operation)} <= set(MOMENTS)


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("kill@step=20,rank=1", {}),
        ("kill@generation=2,rank=1", {"step": 7}),
        ("kill@step=20", {"is_last_rank": True}),
        ("kill@step=20,rank=1,operation=vote", {"operation": "vote"}),
        ("kill-node@step=20", {"is_node_victim": True}),
    ],
)
def test_a_fault_strikes_where_all_that_it_names_is_so(text, here):
    fault = parse_fault(text)
    assert fault.strikes(moment(**here))
    others = [{"step": 21}, {"generation": 3}, {"rank": 0}, {"operation": "reduce"}]
    named = ["step=", "generation=", "rank=", "operation="]
    for name, other in zip(named, others, strict=True):
        if name in text or name == "operation=":
            assert not fault.strikes(moment(**{**here, **other}))
    assert not fault.strikes_controller(2, 20)


def test_of_no_rank_the_highest_is_meant_and_of_a_node_its_victim():
    assert not parse_fault("kill@step=20").strikes(moment())
    assert not parse_fault("kill-node@step=20").strikes(moment(is_last_rank=True))


def test_the_controller_hears_of_several_steps_at_once():
    fault = parse_fault("standstill@step=20,generation=2")
    assert [fault.strikes_controller(2, step) for step in (19, 20, 25)] == [False, True, True]
    assert not fault.strikes_controller(3, 20)
    assert not fault.strikes(moment(is_last_rank=True, is_node_victim=True))


def faults(*texts):
    return [parse_kill(text) for text in texts]


def test_faults_that_can_happen_pass():
    check_faults(
        faults("worker@20", "node@40", "worker@80"), steps=80, ranks=4, nodes=2, address=None
    )
    check_faults(faults("worker@20"), steps=80, ranks=4, nodes=1, address="10.0.0.1:6379")
    check_faults([parse_fault("kill@generation=2")], steps=80, ranks=4, nodes=1, address=None)
    check_faults([], steps=80, ranks=4, nodes=1, address=None)


def test_a_fault_after_the_last_step_is_refused():
    for late in (parse_kill("worker@81"), parse_fault("slow@step=81")):
        with pytest.raises(UserError, match=r"81: the job ends at train.steps = 80"):
            check_faults([late], steps=80, ranks=4, nodes=2, address=None)


def test_a_fault_of_a_rank_that_no_mesh_has_is_refused():
    check_faults([parse_fault("kill@step=3,rank=3")], steps=80, ranks=4, nodes=2, address=None)
    with pytest.raises(UserError, match=r"rank=4: the run has at most 4 ranks, and the first is 0"):
        check_faults([parse_fault("kill@step=3,rank=4")], steps=80, ranks=4, nodes=2, address=None)


def test_nodes_of_a_foreign_cluster_and_the_head_are_never_killed():
    with pytest.raises(UserError, match="refused with --address"):
        check_faults(faults("node@40"), steps=80, ranks=4, nodes=2, address="auto")
    with pytest.raises(UserError, match="--nodes 1 leaves 0 to kill, and 1 are named"):
        check_faults([parse_fault("kill-node@step=40")], steps=80, ranks=4, nodes=1, address=None)
    with pytest.raises(UserError, match="--nodes 2 leaves 1 to kill, and 2 are named"):
        check_faults(faults("node@4", "node@40"), steps=80, ranks=4, nodes=2, address=None)
