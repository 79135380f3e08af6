"""A run whose ladder is replaced: from which moment the new one counts, and what stays."""

import json
from dataclasses import replace

import pytest
from control_drive import Drive, of, records, running
from ladders import ladder, mixed

from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.journal_writer import JournalWriter
from remesh.orchestrator.accounts.snapshot import Snapshot, decode, encode
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import PeerState
from remesh.parallel.plan.layout import Layout

FOUR = (("head", 2), ("b", 2))


def changed(new, reason="memory runs short"):
    return ev.LadderChanged(ladder=new, reason=reason)


def drained(drive, step, *, save=True):
    drive.park(step, drained=True, records=records(step, step, 1.0))
    if save:
        drive.save(step)
        drive.commit(step)


def said(commands):
    return [command.text for command in of(cmd.Announce, commands)]


def test_a_mesh_that_is_not_on_the_new_ladder_saves_and_then_forms_on_it():
    drive = running(10, zero_stage=3)
    commands = drive.do(changed(ladder(max_dp=2, zero_stage=3)))
    assert said(commands) == ["other meshes, of up to 2 workers: memory runs short"]
    assert [drain.save for drain in of(cmd.Drain, commands)] == [True]
    drained(drive, 11)
    life = drive.state.current
    assert (life.layout, life.from_step, life.lost_steps) == (Layout(dp=2), 11, 0)
    assert life.reason.endswith("going over to other meshes: memory runs short")
    assert drive.state.ladder == ladder(max_dp=2, zero_stage=3)


def test_a_mesh_that_is_on_the_new_ladder_too_trains_on_and_grows():
    drive = running(10, max_dp=2, nodes=FOUR)
    assert of(cmd.Drain, drive.do(changed(ladder(max_dp=4)))) == []
    drive.ready()
    (drain,) = of(cmd.Drain, drive.commands)
    assert not drain.save
    drained(drive, 11, save=False)
    life = drive.state.current
    assert (life.layout, life.restore) == (Layout(dp=4), PeerState(step=11, source=0))


def test_where_the_drain_fails_the_next_mesh_is_of_the_old_ladder_and_drains_again():
    drive = running(10, zero_stage=3, zero_group=2, spares=0)
    drive.do(changed(ladder(max_dp=2, tp=2)))
    drive.lose("worker-1")
    drive.park(10)
    assert drive.state.current.layout == Layout(dp=2)
    assert drive.state.current.restore == PeerState(step=10, source=0)
    drive.train()
    assert drive.state.phase == "draining"
    drained(drive, 11)
    life = drive.state.current
    assert (str(life.layout), life.restore) == ("tp=2", PeerState(step=11, source=0))


def test_a_ladder_with_other_leaves_is_refused_with_both_numbers():
    drive = running(10)
    commands = drive.do(changed(ladder(max_dp=2, num_leaves=8)))
    (text,) = said(commands)
    assert text.startswith("a ladder with 8 leaves is refused: this run has 12, fixed at its first")
    assert of(cmd.Drain, commands) == []
    assert drive.state.next_ladder is None


@pytest.mark.parametrize("before_start", [True, False])
def test_a_run_that_waits_takes_it_up_at_once(before_start):
    drive = Drive(nodes=(("head", 2), ("b", 2)), tp=4, max_dp=1)
    if not before_start:
        drive.ready()
    assert drive.state.phase == "waiting"
    drive.do(changed(ladder(tp=2, max_dp=2)))
    drive.ready()
    assert drive.state.current.layout == Layout(dp=2, tp=2)


def test_one_that_comes_while_a_mesh_forms_waits_until_it_trains():
    drive = Drive(zero_stage=3)
    drive.ready()
    assert of(cmd.Fence, drive.do(changed(ladder(max_dp=2)))) == []
    drive.train()
    assert drive.state.phase == "draining"


def test_a_run_that_is_stopped_or_done_takes_up_no_other_ladder():
    drive = running(10)
    drive.do(ev.StopRequested(reason="enough"))
    drive.do(changed(ladder(max_dp=2)))
    drained(drive, 11)
    assert (drive.state.phase, drive.state.ladder) == ("stopped", None)
    done = running(80)
    assert of(cmd.Drain, done.do(changed(ladder(max_dp=2)))) == []


def test_workers_are_started_for_the_new_units_while_the_mesh_trains_on():
    nodes = tuple((name, 4) for name in ("head", "b"))
    drive = running(10, nodes=nodes, max_dp=2, spares=0)
    commands = drive.do(changed(ladder(tp=4, max_dp=2)))
    assert (len(of(cmd.StartWorker, commands)), of(cmd.Drain, commands)) == (6, [])
    drive.ready()
    (drain,) = of(cmd.Drain, drive.commands)
    assert not drain.save
    drained(drive, 11, save=False)
    life = drive.state.current
    assert (life.layout, life.from_step) == (Layout(dp=2, tp=4), 11)


def test_a_mesh_for_which_there_is_no_room_yet_is_gone_over_to_once_there_is():
    drive = running(10, nodes=(("head", 2),), max_dp=2, spares=0)
    assert of(cmd.Drain, drive.do(changed(ladder(tp=4)))) == []
    assert drive.state.phase == "running"
    drive.do(ev.NodeJoined(node="b", slots=4))
    drive.ready()
    drained(drive, 11)  # saved, since nobody on b holds anything
    life = drive.state.current
    assert (life.layout, life.from_step) == (Layout(tp=4), 11)


@pytest.mark.parametrize("wanted", [{"tp": 2, "max_dp": 2}, {"pp": 2, "max_dp": 2}])
def test_where_the_next_mesh_takes_all_state_along_nothing_is_written(wanted):
    drive = running(10, zero_stage=3)
    (drain,) = of(cmd.Drain, drive.do(changed(ladder(**wanted))))
    assert not drain.save
    drained(drive, 11, save=False)
    life = drive.state.current
    assert (life.layout.world_size, life.restore) == (4, PeerState(step=11, source=0))


def test_a_mesh_that_grows_goes_over_to_the_new_ladder_at_the_same_boundary():
    drive = running(10, nodes=(("head", 2),), max_dp=4)
    drive.do(ev.NodeJoined(node="b", slots=2))
    drive.ready()
    assert drive.state.phase == "draining"
    drive.do(changed(ladder(max_dp=2, tp=2)))
    drained(drive, 11, save=False)
    assert drive.state.current.layout == Layout(dp=2, tp=2)
    assert drive.state.next_ladder is None


def test_a_new_ladder_is_not_taken_up_at_a_boundary_where_state_would_be_left_out():
    drive = running(10, nodes=(("head", 2),), max_dp=4, zero_stage=3)
    drive.do(ev.NodeJoined(node="b", slots=2))
    drive.ready()
    drive.do(changed(ladder(max_dp=1)))
    drained(drive, 11, save=False)
    life = drive.state.current
    assert (life.layout, life.from_step) == (Layout(dp=4), 11)
    drive.train()
    assert [drain.save for drain in of(cmd.Drain, drive.commands)] == [False, True]


def test_storage_that_took_nothing_is_not_asked_again_before_it_has_taken_something():
    drive = running(10, zero_stage=3)
    drive.do(changed(ladder(max_dp=2, zero_stage=3)))
    drive.park(11, drained=True, records=records(11, 11, 1.0))
    drive.all(ev.SaveFailed, workers=["worker-0"], step=11, error="the disk is full")
    assert (drive.state.last_generation, drive.state.current.layout) == (2, Layout(dp=4))
    drive.train(19)
    assert drive.state.phase == "running"
    drive.steps(20)
    drive.save(20)
    drive.commit(20)
    assert (drive.state.phase, drive.state.current.saving) == ("draining", True)


def test_what_only_a_node_that_leaves_holds_is_not_left_behind_for_another_ladder():
    """Storage took nothing as the node was to leave, so it stays until it has taken something."""
    drive = running(10, zero_stage=3)
    drive.do(ev.NodeDraining(node="b", cause="it is wanted elsewhere"))
    drive.park(11, drained=True, records=records(11, 11, 1.0))
    drive.all(ev.SaveFailed, workers=["worker-0"], step=11, error="the disk is full")
    drive.train(12)
    assert (drive.state.phase, drive.state.current.layout) == ("running", Layout(dp=4))
    assert of(cmd.Drain, drive.do(changed(ladder(max_dp=2, tp=2)))) == []
    assert of(cmd.Drain, drive.do(changed(ladder(max_dp=2)))) == []


def test_a_node_that_begins_to_leave_at_the_boundary_still_counts_for_another_ladder():
    """Those who stay hold nothing whole by then, and a mesh of two could not take all along."""
    drive = running(10, zero_stage=3)
    (drain,) = of(cmd.Drain, drive.do(changed(ladder(max_dp=2, tp=2))))
    assert not drain.save
    drive.do(changed(ladder(max_dp=2)))
    drive.do(ev.NodeDraining(node="b", cause="it is wanted elsewhere"))
    drained(drive, 11, save=False)
    life = drive.state.current
    assert (life.layout, life.from_step) == (Layout(dp=4), 11)
    drive.train()
    drained(drive, 12)
    life = drive.state.current
    assert (life.layout, life.from_step) == (Layout(dp=2), 12)


def waiting_pairs():
    """Two stages, each held by a pair, of which one has died: a run that waits for the fourth."""
    drive = running(10, max_dp=1, cp=2, pp=2, nodes=FOUR)
    lost = drive.state.current.members[-1].worker
    drive.lose(lost)
    drive.park(10)
    assert drive.state.phase == "waiting"
    return drive


def test_a_run_that_waits_saves_what_the_next_mesh_of_another_ladder_would_leave_behind():
    drive = waiting_pairs()
    commands = drive.do(changed(ladder(max_dp=1)))
    (save,) = of(cmd.SaveHeld, commands)
    assert (save.step, len(save.workers), of(cmd.Form, commands)) == (10, 2, [])
    drive.save(10, workers=save.workers)
    drive.commit(10)
    life = drive.state.current
    assert (life.layout, life.from_step, life.lost_steps) == (Layout(dp=1), 10, 0)


def test_it_takes_it_up_at_once_where_the_next_mesh_brings_all_along():
    drive = waiting_pairs()
    commands = drive.do(changed(ladder(max_dp=3)))
    assert of(cmd.SaveHeld, commands) == []
    drive.ready()
    life = drive.state.current
    assert (life.from_step, life.lost_steps) == (10, 0)


def test_it_goes_on_waiting_for_its_own_mesh_where_storage_takes_nothing():
    drive = waiting_pairs()
    (save,) = of(cmd.SaveHeld, drive.do(changed(ladder(max_dp=1))))
    drive.all(ev.SaveFailed, workers=save.workers, step=10, error="the disk is full")
    drive.do(changed(ladder(max_dp=1)))
    assert drive.state.phase == "waiting"
    drive.ready()
    life = drive.state.current
    assert (str(life.layout), life.from_step) == ("pp=2 cp=2", 10)


def test_bits_that_change_with_the_ladder_are_announced_with_the_keys():
    drive = running(10)
    drive.do(changed(ladder(max_dp=2, tp=2)))
    commands = drive.park(11, drained=True)
    assert "the bits change from here on: tp was 1 and is 2" in said(commands)


def test_other_bits_are_taken_only_for_want_of_room_and_are_announced_with_the_keys():
    both = mixed({"tp": 2, "max_dp": 2}, {"max_dp": 4})
    drive = running(10, ladder=both, spares=0)
    assert drive.state.current.layout == Layout(dp=2, tp=2)
    drive.lose("worker-0")
    drive.park(10, workers=["worker-1", "worker-2", "worker-3"])
    assert drive.state.current.layout == Layout(tp=2)  # three single workers would be more
    drive.train()
    drive.lose(drive.members[0])
    commands = drive.park(10)
    assert drive.state.current.layout == Layout(dp=2)
    change = "no mesh with the same bits fits; they change from here on: tp was 2 and is 1"
    assert change in said(commands)


def test_the_machine_comes_back_with_its_ladders_from_journal_and_snapshot():
    lines = []

    class Written(Drive):
        def do(self, *events, after_s=0.01):
            lines.extend(journal.encode(event, self.now_s + after_s) for event in events)
            return super().do(*events, after_s=after_s)

    drive = Written(zero_stage=3)
    drive.ready()
    drive.train(10)
    drive.do(changed(ladder(max_dp=2, zero_stage=3)))
    drained(drive, 11)
    drive.train(12)
    drive.do(changed(mixed({"tp": 2}, {"max_dp": 3})))
    assert drive.state.ladder is not None
    assert drive.state.next_ladder is not None
    again = journal.replay(lines, drive.controller.options)
    assert again.state == drive.state
    values = json.loads(json.dumps(encode(Snapshot(state=drive.state, tally=Tally()))))
    assert decode(values).state == drive.state


def test_a_restarted_controller_still_drains_to_save():
    drive = running(10)
    (asked,) = of(cmd.Drain, drive.do(changed(ladder(max_dp=2))))
    (again,) = of(cmd.Drain, drive.do(ev.ControllerRestarted(down_s=1.0)))
    assert again == asked


def test_the_journal_of_sixteen_thousand_workers_holds_a_ladder_in_one_short_line(tmp_path):
    huge = ladder(max_dp=2048, tp=8, zero_stage=3, zero_group=16)
    drive = running(5, nodes=(("head", 8),), max_dp=1, tp=8)
    JournalWriter(tmp_path, 1, replace(drive.controller.options, ladder=huge))
    (path,) = tmp_path.rglob("*.jsonl")
    (line,) = path.read_text().splitlines()
    assert len(line) < 2_000
    (read,) = read_history(tmp_path).starts
    assert read.options.ladder == huge
    assert len(journal.encode(changed(huge), 1.0)) < 2_000
