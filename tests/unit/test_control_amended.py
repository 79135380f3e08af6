"""Changes from a step on, as the machine takes them up: which mesh trains with them, since when."""

from pathlib import Path

from control_drive import Drive, of, records, running
from control_values import options
from test_forms import STORE, TIMERS

from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.links.forms import shared_form
from remesh.orchestrator.accounts.snapshot import Snapshot, decode, encode
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.orchestrator.job.amendments import Amendment

LOWER = Amendment(step=41, key="train.lr", old=3e-3, new=1e-3)
SOONER = Amendment(step=21, key="train.clip", old=1.0, new=0.5)
AT_40 = {"resume": CheckpointState(step=40, name="step-40.gen-1"), "last_generation": 1}
SAID = "from step 41 on: train.lr 0.003 -> 0.001"


def said(commands):
    return [command.text for command in of(cmd.Announce, commands)]


def forms(drive):
    return [form.amendments for form in of(cmd.Form, drive.commands)]


def test_a_start_with_a_change_says_so_first_and_every_mesh_is_told():
    """user 4."""
    drive = Drive(**AT_40, amendments=(SOONER,))
    drive.do(ev.Amended(changes=(LOWER,)))
    drive.ready()
    assert said(drive.commands)[0] == SAID
    assert forms(drive) == [(SOONER, LOWER)]
    (form,) = of(cmd.Form, drive.commands)
    assert shared_form(form, STORE, TIMERS).amendments == (SOONER, LOWER)
    drive.train(50)
    drive.lose("worker-0")
    drive.park(50)
    assert forms(drive) == [(SOONER, LOWER)] * 2
    assert said(drive.commands).count(SAID) == 1
    assert view_of(drive.controller).amendments == (SOONER, LOWER)


def test_one_that_comes_before_the_start_counts_and_twice_is_once():
    machine = Controller(options(steps=80, **AT_40))
    told = [machine.handle(event, 0.0) for event in (ev.Amended(changes=(LOWER,)), ev.RunStarted())]
    told += [machine.handle(ev.Amended(changes=(LOWER,)), 0.0)]
    assert said(command for commands in told for command in commands) == [SAID]
    assert machine.amendments == (LOWER,)


def test_a_mesh_that_trains_is_left_at_a_boundary_and_the_next_one_trains_with_it():
    drive = running(50)
    commands = drive.do(ev.Amended(changes=(LOWER,)))
    assert [drain.save for drain in of(cmd.Drain, commands)] == [False]
    assert said(commands) == []
    drive.park(51, drained=True, records=records(51, 51, 1.0))
    since = Amendment(step=52, key="train.lr", old=3e-3, new=1e-3)
    assert forms(drive) == [(), (since,)]
    life = drive.state.current
    assert (life.from_step, life.lost_steps) == (51, 0)
    assert life.reason.endswith("taking up changes of train.lr")
    assert drive.state.asked_changes == ()


def test_one_that_comes_while_a_mesh_forms_waits_until_it_trains():
    drive = Drive()
    drive.ready()
    assert of(cmd.Fence, drive.do(ev.Amended(changes=(LOWER,)))) == []
    drive.train()
    assert drive.state.phase == "draining"


def test_where_the_drain_fails_the_mesh_after_it_trains_with_it():
    drive = running(50)
    drive.do(ev.Amended(changes=(LOWER,)))
    drive.lose("worker-1")
    drive.park(50)
    since = Amendment(step=51, key="train.lr", old=3e-3, new=1e-3)
    assert forms(drive)[-1] == (since,)


def test_a_mesh_that_starts_from_an_older_checkpoint_has_it_from_its_step_only():
    older = CheckpointState(step=20, name="step-20.gen-1")
    drive = Drive(**AT_40, fallbacks=(older,), spares=0)
    drive.do(ev.Amended(changes=(LOWER,)))
    drive.ready()
    while drive.state.current.from_step == 40:
        drive.all(ev.WorkerFormed, form_s=0.01)
        name = AT_40["resume"].name
        drive.all(ev.RestoreFailed, workers=drive.members[:1], name=name, error="damaged")
        drive.park(None)
    assert drive.state.current.from_step == 20
    assert set(forms(drive)) == {(LOWER,)}


def test_the_last_step_needs_no_other_mesh():
    drive = running(79)
    drive.steps(80)
    assert of(cmd.Drain, drive.do(ev.Amended(changes=(LOWER,)))) == []


def test_a_controller_that_is_back_knows_it_from_the_journal(tmp_path: Path):
    wanted = options(steps=80, **AT_40)
    writer = JournalWriter(tmp_path, 1, wanted)
    for event in (ev.Amended(changes=(LOWER,)), ev.RunStarted()):
        writer.event(event, 1.0)
    [found] = read_history(tmp_path).starts
    assert found.replay().amendments == (LOWER,)


def test_a_snapshot_holds_what_is_asked_for_and_what_holds():
    drive = running(50, amendments=(SOONER,))
    drive.do(ev.Amended(changes=(LOWER,)))
    there = Snapshot(state=drive.state, tally=Tally())
    assert decode(encode(there)) == there
    assert there.state.asked_changes == (LOWER,)
