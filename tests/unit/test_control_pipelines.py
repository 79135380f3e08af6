"""Pipelines: who makes up the next mesh, who keeps which stage, and what is said of schedules."""

from dataclasses import replace

import pytest
from control_drive import Drive, of, running
from ladders import mixed

from remesh.orchestrator.control.moves.choosing import _stages_held
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.plan.rung import Rung
from remesh.orchestrator.plan.spreading import spread
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.pipeline import Pipeline

PAIRS = (("head", 2), ("b", 2))
SIX = {"nodes": (("head", 2), ("b", 2), ("c", 2)), "max_dp": 3}


def newest(drive):
    return of(cmd.Form, drive.commands)[-1]


def stages(form):
    return {m.worker: form.rung.held_by(m.rank).stage for m in form.members}


def left_after(drive, *lost):
    """The next mesh, once these are lost and the others have parked at step 12."""
    drive.lose(*lost)
    drive.park(12)
    return newest(drive)


def test_a_pipeline_of_one_node_goes_on_where_another_one_lost_a_stage():
    """Either holder of the first stage would do; the one beside the last stage is taken."""
    drive = running(12, nodes=PAIRS, pp=2, max_dp=2)
    assert stages(newest(drive)) == {"worker-0": 0, "worker-2": 1, "worker-1": 0, "worker-3": 1}
    form = left_after(drive, "worker-2")
    assert [member.node for member in form.members] == ["b", "b"]
    assert (str(form.rung.layout), form.from_step) == ("pp=2", 12)


def test_so_it_does_where_pipelines_stretch_over_a_rack():
    nodes = (("a", 1), ("b", 1), ("c", 1), ("d", 1))
    drive = Drive(nodes=(), pp=2, max_dp=2)
    for name, slots in nodes:
        domain = "rack-1" if name in "ab" else "rack-2"
        drive.do(ev.NodeJoined(node=name, slots=slots, head=name == "a", domain=domain))
    drive.ready()
    drive.train(12)
    by_node = {m.node: m.worker for m in newest(drive).members}
    form = left_after(drive, by_node["b"])
    assert {member.node for member in form.members} == {"c", "d"}


def test_a_pipeline_is_taken_out_of_one_domain_and_the_next_one_out_of_another():
    """Racks of three, of which one worker comes too late: the oldest four are three and one."""
    drive = Drive(nodes=(), pp=2, max_dp=3)
    for number in range(6):
        rack = f"rack-{number // 3}"
        drive.do(ev.NodeJoined(node=f"n{number}", slots=1, head=number == 0, domain=rack))
    for worker in list(drive.state.roster.workers.values())[:5]:
        drive.do(ev.WorkerReady(worker=worker.name, node=worker.node, pid=1))
    drive.tick()
    form = newest(drive)
    replicas = [form.members[:2], form.members[2:]]
    assert [{m.node[1:] < "3" for m in replica} for replica in replicas] == [{True}, {False}]


def test_units_are_spread_over_domains_as_whole_pipelines():
    racks = "AAABBBCCC"
    assert spread(racks, 6, 2) == [0, 1, 3, 4, 6, 7]
    assert spread(racks, 4, 2) == [0, 1, 3, 4]
    assert spread("AAAAAA", 4, 2) == [0, 1, 2, 3]
    assert sorted(spread("AAABBB", 6, 2)) == list(range(6))
    assert spread("ABBBAA", 4, 2, first=1) == [0, 4, 1, 2]  # the one that has to be is completed
    assert spread(racks, 2, 2, first=5) == [0, 1]
    assert spread("AAB", 6, 3) == [0, 1, 2]  # there are no more


def test_who_holds_a_stage_keeps_it_beside_a_newcomer():
    """The first stage is lost, and a spare comes: the second one is not moved to its place."""
    drive = running(12, nodes=(("head", 3),), pp=2, max_dp=1, spares=1)
    first, second = (m.worker for m in newest(drive).members)
    form = left_after(drive, first)
    assert len(form.members) == 2
    assert stages(form)[second] == 1
    assert [m.at_step for m in form.members] == [None, 12]
    assert form.from_step == 0  # nobody has the first stage
    again = running(12, **SIX, pp=2, spares=0)
    lost = newest(again).members[0]
    form = left_after(again, lost.worker)
    assert all(
        form.rung.held_by(m.rank).stage == m.held.stage for m in form.members if m.at_step == 12
    )


def test_a_stage_that_no_other_replica_has_comes_from_a_checkpoint():
    drive = running(12, nodes=(("head", 2),), pp=2, max_dp=1, spares=0)
    drive.save(10)
    drive.commit(10)
    drive.lose(newest(drive).members[1].worker)
    drive.park(12)
    drive.ready()
    form = newest(drive)
    assert form.from_step == 10
    assert "as no live rank holds stage 1 of 2 at step 12" in drive.state.current.reason


def test_a_stage_counts_at_the_newest_step_and_of_pipelines_cut_alike_only():
    layout = Layout(dp=1, pp=2)
    rung = Rung(layout=layout, cut=Cut.of(layout, 1))
    first, second = (rung.held_by(rank) for rank in (0, 1))
    held = {"a": (12, second), "b": (11, first)}
    assert _stages_held(rung, ["a", "b", "c"], held) == [1, None, None]
    other = Cut.of(layout, 1, pipeline=Pipeline(ranks=2, layers=(1, 3)))
    assert rung.stage_of(replace(second, cut=other)) is None
    assert rung.stage_of(replace(second, cut=replace(rung.cut, shards=2))) == 1


@pytest.mark.parametrize("workers", [(4, "pp=4"), (3, "pp=3"), (2, "pp=2"), (1, "dp=1")])
def test_the_largest_mesh_on_what_is_left_may_have_shorter_pipelines(workers):
    left, layout = workers
    kinds = [{"pp": pp, "max_dp": 4 // pp} for pp in (4, 3, 2, 1)]
    drive = running(12, nodes=(("head", left),), ladder=mixed(*kinds), spares=0)
    assert str(newest(drive).rung.layout) == layout


def test_a_schedule_that_gives_way_is_said_once():
    """Three replicas have four microbatches each, four have three, which two cannot take turns."""
    said = []
    drive = running(12, nodes=(("head", 9),), pp=2, schedule="interleaved", max_dp=4, spares=1)
    said.append(announced(drive, "instead of"))
    left_after(drive, newest(drive).members[0].worker)
    assert newest(drive).rung.schedule == "1f1b"
    said.append(announced(drive, "instead of"))
    left_after(drive, newest(drive).members[0].worker)
    said.append(announced(drive, "instead of"))
    assert newest(drive).rung.schedule == "interleaved"
    drive.train(14)
    drive.ready()
    drive.tick()
    drive.park(14, drained=True)
    assert newest(drive).rung.schedule == "1f1b"
    said.append(announced(drive, "instead of"))
    assert said == [1, 1, 1, 2]


def announced(drive, words):
    return sum(words in one.text for one in of(cmd.Announce, drive.commands))
