"""What is reckoned from a run for people who look at it: pace, time left, curve, waits."""

import math

import pytest
from control_drive import Drive
from tallied_drive import TalliedDrive, tallied, through_everything

from remesh.actors.run.told import NOBODY, progress_of, told_of
from remesh.orchestrator.accounts.loss_curve import MOST_POINTS, LossCurve
from remesh.orchestrator.accounts.pace import RECENT, left_s, pace_s
from remesh.orchestrator.accounts.standing import standing_of
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.accounts.waits import Awaited, wait_of
from remesh.orchestrator.control.words import events as ev


def ends(*moments, first=1):
    return tuple(enumerate(moments, start=first))


def curve(*losses):
    made = LossCurve()
    for loss in losses:
        made.add(loss)
    return made


def test_the_pace_is_that_of_most_steps():
    assert pace_s(()) is None
    assert pace_s(ends(1.0)) is None
    assert pace_s(ends(1.0, 1.5)) == 0.5
    assert pace_s(ends(0.0, 1.0, 2.0, 60.0, 61.0)) == 1.0  # a recovery in between
    assert pace_s(((7, 1.0), (5, 2.0))) is None  # went back
    assert pace_s(ends(*range(0, 1000, 10), *range(1000, 1000 + RECENT))) == 1.0


def test_the_time_left_is_unknown_without_a_pace():
    assert left_s(None, step=1, steps=9) is None
    assert left_s(0.5, step=1, steps=9) == 4.0
    assert left_s(0.5, step=12, steps=9) == 0.0


def test_a_curve_has_few_points_however_long_the_run_is():
    made = curve(*map(float, range(100_000)))
    assert len(made.losses) <= MOST_POINTS
    assert sum(made.points) / len(made.points) == pytest.approx(
        sum(range(len(made.points) * made.stride)) / (len(made.points) * made.stride)
    )
    assert sorted(made.losses) == list(made.losses)


def test_a_loss_that_is_not_finite_stays_in_its_point():
    losses = [1.0] * 300
    losses[100] = math.nan
    points = curve(*losses).losses
    assert [math.isnan(point) for point in points].count(True) == 1
    assert set(points) - {1.0} != set()


def test_each_step_is_in_the_curve_once_even_if_it_is_trained_again():
    drive = tallied(10)
    drive.save(10)
    drive.commit(10)
    drive.steps(15)
    drive.lose(drive.members[0])
    drive.park(None)
    drive.train(18)
    assert len(drive.tally.losses.losses) == 18


def test_a_mesh_that_could_be_larger_before_long_is_what_is_waited_for():
    """It said "have 3, need 1", and waited all the same."""
    drive = Drive(max_dp=4)
    drive.do(ev.WorkerReady(worker="worker-0", node="head", pid=1))
    until_s = drive.state.deadlines.gather_s
    text = "waiting for a larger mesh"
    assert waits(drive) == Awaited(text=text, have=1, need="4", until_s=until_s)
    assert drive.state.reason == f"{text}: have 1, need 4"


def waits(drive):
    return wait_of(drive.controller)


def test_what_a_run_waits_for_in_each_phase():
    """inputs B7"""
    drive = Drive(min_workers=4)
    limit_s = drive.now_s + drive.controller.options.wait_limit_s
    assert waits(drive) == Awaited(text="waiting for workers", have=0, need="4", until_s=limit_s)
    drive.ready()
    due_s = drive.state.deadlines.phase_s
    assert waits(drive) == Awaited(text="forming a mesh", have=0, need="4", until_s=due_s)
    drive.all(ev.WorkerFormed, workers=drive.members[:3], form_s=0.01)
    assert waits(drive).have == 3
    drive.all(ev.WorkerFormed, form_s=0.01)
    assert (waits(drive).text, waits(drive).have) == ("restoring the state", 0)
    drive.all(ev.WorkerRestored, at_step=0, restore_s=0.01)
    assert waits(drive).text == "training the first step"
    drive.steps(5)
    assert waits(drive) is None
    drive.do(ev.StopRequested(reason="enough"))
    assert (waits(drive).text, waits(drive).need) == ("saving at a step boundary", "4")
    drive.lose(drive.members[0])
    assert (waits(drive).text, waits(drive).have) == ("leaving the old mesh", 1)


def test_a_run_that_needs_nodes_says_so():
    """inputs B7"""
    found = waits(Drive(min_nodes=3))
    assert (found.text, found.have, found.need) == ("waiting for nodes", 0, "3")


def test_where_a_run_stands_in_numbers():
    drive = tallied(20, steps=80)
    drive.save(20)
    drive.commit(20)
    view = view_of(drive.controller)
    standing = standing_of(view, drive.tally)
    assert standing.step_s == pytest.approx(0.2)
    assert standing.left_s == pytest.approx(60 * 0.2)
    assert 0.5 < standing.goodput <= 1.0
    status = progress_of(view, standing, drive.now_s + 30.0)
    assert (status.saved_step, status.saved_ago_s) == (20, pytest.approx(30.0))
    assert (status.nodes, status.spares, len(status.generations)) == (2, 0, 1)
    assert status.generations[0].text.startswith("dp=4 from step 0")


def test_nothing_is_known_of_a_run_that_has_just_begun():
    drive = TalliedDrive()
    standing = standing_of(view_of(drive.controller), Tally())
    assert (standing.step_s, standing.left_s, standing.goodput) == (None, None, None)
    assert standing.losses == ()


def test_nobody_works_for_a_run_that_has_ended():
    """user 11"""
    drive = through_everything()
    view = view_of(drive.controller)
    told = told_of(view, standing_of(view, drive.tally))
    assert {key: told[key] for key in NOBODY} == NOBODY
    assert told["left_s"] is None
