"""Other degrees that a run may fall to, for other bits: which there are, when they are taken."""

from pathlib import Path

import pytest
from control_drive import of, records, running
from ladders import mixed

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import PeerState
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.plan.planner import NodeRoom, ladder_of, rung_for
from remesh.orchestrator.plan.wish import wish_of, wished_ladder
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
EXPERTS = ("model.num_experts=4", "model.expert_width=64", "parallel.ep=4")
EITHER = mixed({"tp": 2, "max_dp": 2, "zero_stage": 3}, {"max_dp": 4, "zero_stage": 3})


def tiny(*overrides):
    return load_job(TINY, overrides)


def kinds(job):
    """The largest mesh of each kind, the job's own first."""
    return [str(flight.highest.layout) for flight in ladder_of(job).flights]


def refusal(*overrides):
    with pytest.raises(UserError) as caught:
        tiny(*overrides)
    return str(caught.value).removeprefix("--set: ")


def test_a_run_may_fall_to_each_of_the_other_degrees():
    assert kinds(tiny("parallel.tp=2", "elastic.tp=[4,1]")) == ["dp=2 tp=2", "tp=4", "dp=4"]
    assert kinds(tiny("elastic.cp=[2]")) == ["dp=4", "dp=2 cp=2"]
    assert kinds(tiny(*EXPERTS, "elastic.ep=[2,1]")) == ["dp=4 ep=4", "dp=4 ep=2", "dp=4"]
    assert kinds(tiny("elastic.tp=[2]", "elastic.pp=[2]")) == [
        "dp=4",
        "dp=2 pp=2",
        "dp=2 tp=2",
        "pp=2 tp=2",
    ]


def test_degrees_that_do_not_go_together_are_left_out():
    job = tiny("elastic.tp=[4]", "elastic.cp=[2]")
    assert kinds(job) == ["dp=4", "dp=2 cp=2", "tp=4"]
    shared = ("parallel.tp=2", "parallel.sequence=true", "train.seq_len=12")
    eight = tiny(*shared, "elastic.tp=[4]", "elastic.cp=[2]", "elastic.max_workers=8")
    assert kinds(eight) == ["dp=4 tp=2", "dp=2 cp=2 tp=2", "dp=2 tp=4"]


def test_meshes_of_the_jobs_own_degrees_are_taken_before_larger_ones():
    job = tiny("parallel.tp=2", "elastic.tp=[1]")
    ladder = ladder_of(job)
    assert str(rung_for(job, ladder, NodeRoom(nodes=1, places=3)).layout) == "tp=2"
    assert str(rung_for(job, ladder, NodeRoom(nodes=3, places=1)).layout) == "dp=3"


def test_the_bits_of_each_kind_are_told_apart_and_why_they_are_there_is_said():
    job = tiny("parallel.tp=2", "elastic.tp=[1]")
    ladder = ladder_of(job)
    assert [flight.bit_key for flight in ladder.flights] == [job.bit_key, tiny().bit_key]
    said = "other degrees change the bits: taken where no mesh of the job's own has room"
    assert said in ladder.reasons
    assert said not in ladder_of(tiny()).reasons


def test_all_of_them_share_one_number_of_leaves():
    assert tiny("parallel.tp=2").num_leaves == 2
    assert tiny("parallel.tp=2", "elastic.tp=[1]").num_leaves == tiny().num_leaves == 12
    five = ("elastic.max_workers=5", "train.global_batch=60", "train.microbatch=1")
    assert tiny(*EXPERTS, "parallel.ep=1", *five).num_leaves == 15
    assert tiny(*EXPERTS, "parallel.ep=1", "elastic.ep=[4]", *five).num_leaves % 4 == 0
    job = tiny(*EXPERTS, "elastic.ep=[2,1]")
    assert {flight.staging.num_leaves for flight in ladder_of(job).flights} == {job.num_leaves}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["elastic.tp=[3]"],
            "elastic.tp = [3]: parallel.tp = 3 does not divide model.num_heads = 4; use",
        ),
        (
            ["elastic.ep=[2]"],
            "elastic.ep = [2]: parallel.ep = 2 ranks share experts",
        ),
        (["elastic.cp=[8]"], "elastic.cp = [8]: parallel.tp = 1 with parallel.cp = 8 needs 8"),
        (["elastic.tp=2"], "elastic.tp = 2: expected a list; write it as --set elastic.tp=[2]"),
        (
            ["elastic.tp=[1,2,4]", "elastic.cp=[1,2,4]", "elastic.pp=[1,2,3,4]"],
            "elastic.pp, tp, cp and ep make up to 80 kinds of meshes; name fewer of them",
        ),
    ],
)
def test_degrees_that_can_never_be_are_refused_with_the_key(overrides, message):
    assert message in refusal(*overrides)


def test_degrees_that_the_leaves_of_a_run_do_not_go_into_are_left_out_of_a_wish():
    """Six leaves cannot be dealt to groups of four replicas that compute at the same time."""
    more = ("parallel.ep=1", "parallel.cp=4", "elastic.ep=[4]", "elastic.max_workers=12")
    job = tiny(*EXPERTS, *more)
    assert (job.num_leaves, kinds(job)) == (6, ["dp=3 cp=4", "dp=3 cp=4 ep=4"])
    (flight,) = wished_ladder(job, wish_of("cp=1", job)).flights
    assert str(flight.highest.layout) == "dp=6"


def test_a_wish_for_a_degree_does_without_the_others_of_its_axis_only():
    job = tiny("parallel.tp=2", "elastic.tp=[1]", "elastic.cp=[2]")
    meshes = [str(f.highest.layout) for f in wished_ladder(job, wish_of("tp=1", job)).flights]
    assert meshes == ["dp=4", "dp=2 cp=2"]


def drained(drive, step):
    drive.park(step, drained=True, records=records(step, step, 1.0))


def test_a_run_comes_back_to_the_degrees_of_its_job_once_there_is_room():
    drive = running(10, ladder=mixed({"tp": 2, "max_dp": 2}, {"max_dp": 4}), spares=0)
    drive.lose(drive.members[0], drive.members[2])
    drive.park(10)
    assert str(drive.state.current.layout) == "dp=2"
    drive.train(12)
    drive.ready()
    (drain,) = of(cmd.Drain, drive.commands)
    assert (drain.save, drive.state.phase) == (False, "draining")
    drained(drive, 13)
    life = drive.state.current
    assert str(life.layout) == "dp=2 tp=2"
    texts = [command.text for command in of(cmd.Announce, drive.commands)]
    assert "the bits change from here on: tp was 1 and is 2" in texts
    assert isinstance(life.restore, PeerState)
    assert (life.from_step, life.lost_steps) == (13, 0)


def test_it_keeps_its_state_first_and_saves_what_the_own_degrees_would_leave_out():
    """Three single workers share the state; a pair on a node of its own holds nothing of it."""
    drive = running(10, ladder=EITHER, nodes=(("head", 1), ("b", 1), ("c", 1)), spares=0)
    assert str(drive.state.current.layout) == "dp=3"
    drive.do(ev.NodeJoined(node="d", slots=2))
    drive.ready()  # the first of two to come makes up a fourth replica
    drained(drive, 11)
    life = drive.state.current
    assert (str(life.layout), life.from_step, life.lost_steps) == ("dp=4", 11, 0)
    drive.train()
    assert [drain.save for drain in of(cmd.Drain, drive.commands)] == [False, True]
    assert drive.state.reason == "going back to the degrees of the job"
    drive.park(12, drained=True, records=records(12, 12, 1.0))
    drive.save(12)
    drive.commit(12)
    life = drive.state.current
    assert (str(life.layout), life.from_step, life.lost_steps) == ("tp=2", 12, 0)
