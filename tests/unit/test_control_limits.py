"""What a controller does when a wait is over, or when a word overtakes another."""

import pytest
from control_drive import Drive, of, running
from control_values import held, slot

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import Phase

TWO = (("head", 1), ("b", 1))
FOUR = (*TWO, ("c", 1), ("d", 1))
STOP = ev.StopRequested(reason="enough", wish="user")


def end_of(commands):
    (end,) = of(cmd.End, commands)
    return f"{end.status}: {end.reason}"


def tick(drive):
    """The next one that is asked for."""
    return drive.do(ev.Tick(), after_s=drive.controller.next_deadline_s() - drive.now_s)


def with_vaults(drive):
    for name in drive.state.roster.nodes:
        drive.do(ev.VaultUp(node=name, address=f"10.0.0.1:{name}"))
    return drive


def told(drive, *nodes):
    """Each vault holds all of the state at the newest step."""
    step, generation = drive.state.step, drive.state.last_generation
    of_all = {"generation": generation}
    return [
        command
        for node in nodes
        for command in drive.do(
            ev.VaultTold(node=node, slots=(slot(node, held(dp=2), step, 1),), **of_all)
        )
    ]


def test_a_run_that_has_no_mesh_yet_stops_at_once():
    drive = Drive(nodes=TWO, max_dp=2)
    assert end_of(drive.do(STOP)) == "stopped: enough; nothing is saved"


def test_a_mesh_forms_without_those_who_are_late_when_the_wait_is_over():
    drive = Drive(nodes=TWO, max_dp=2, wait_limit_s=5.0)
    drive.do(ev.WorkerReady(worker="worker-0", node="head", pid=1))
    (form,) = of(cmd.Form, tick(drive))
    assert [member.worker for member in form.members] == ["worker-0"]


def test_a_stop_waits_for_mute_vaults_no_longer_than_a_fence_does():
    drive = with_vaults(running(5, nodes=FOUR, max_dp=5, min_workers=3))
    drive.do(ev.NodeJoined(node="e", slots=1))
    drive.ready()
    for name in ("b", "c", "d"):
        drive.do(ev.NodeDraining(node=name, cause="preempted"))
    drive.park(6, drained=True)
    assert (drive.state.phase, bool(drive.state.vaults.awaited)) == (Phase.WAITING, True)
    drive.lose(*[f"worker-{number}" for number in range(4)])
    assert of(cmd.End, drive.do(STOP)) == []
    began_s, commands = drive.now_s, []
    while not of(cmd.End, commands):
        commands += tick(drive)
    assert drive.now_s - began_s < 5.0
    assert end_of(commands).startswith("stopped: enough; nothing is saved of steps 1 to 6: neither")


def test_a_run_that_has_failed_too_often_reads_no_vault_for_its_last_checkpoint():
    drive = with_vaults(running(5, nodes=TWO, max_dp=2, max_failures=0))
    drive.lose("worker-0")
    told(drive, "head", "b")
    assert end_of(drive.lose("worker-1")).endswith(
        "only vaults hold them, and no further mesh is tried"
    )


def tried_in_vain(max_failures):
    """What a stopped run says whose newest step only vaults hold, until it ends; its meshes break
    before a step.
    """
    drive = with_vaults(running(5, nodes=TWO, max_dp=2, max_failures=max_failures))
    drive.state.budget.failures = -1  # the death of both is not what is asked for here
    drive.lose("worker-0")
    drive.do(STOP)
    drive.lose("worker-1")
    told(drive, "head", "b")
    drive.ready()
    commands = []
    while not of(cmd.End, commands):
        number = drive.state.last_generation
        broken = ev.GroupBroken(worker=drive.members[0], generation=number, error="reset")
        commands += drive.do(broken)
        commands += drive.park(None, held_in=0)
        commands += told(drive, "head", "b")
        while drive.state.phase is Phase.WAITING:
            assert of(cmd.Form, told(drive, "head")) == []
            commands += tick(drive)
    return commands, number - 1


def test_a_mesh_that_is_to_read_vaults_for_a_stop_is_tried_as_often_as_any():
    commands, tries = tried_in_vain(0)
    assert 3 <= tries <= 6
    assert "the mesh that was to read them from the vaults broke too often" in end_of(commands)


def test_and_after_pauses_as_long_as_those_before_any():
    """Whatever the vaults say meanwhile."""
    commands, _ = tried_in_vain(1)
    said = [one.text for one in of(cmd.Announce, commands)]
    pauses = [text.split(" s: ")[0] for text in said if text.startswith("the next mesh")]
    assert pauses == [f"the next mesh is tried in {one}" for one in ("0.5", "1", "2", "4")]


def test_a_first_step_tells_that_all_have_restored():
    drive = Drive(nodes=TWO, max_dp=2)
    drive.ready()
    drive.all(ev.WorkerFormed, form_s=0.1)
    drive.all(ev.WorkerRestored, workers=["worker-0"], at_step=0, restore_s=0.1)
    drive.steps(1)
    assert drive.state.phase is Phase.RUNNING


def test_one_that_parks_unasked_ends_its_generation():
    drive = running(5, nodes=TWO, max_dp=2)
    (fence,) = of(cmd.Fence, drive.park(5, workers=["worker-1"]))
    assert fence.workers == ("worker-0",)


@pytest.mark.parametrize(("step", "phase"), [(20, Phase.RUNNING), (19, Phase.FENCING)])
def test_a_mesh_that_has_a_checkpoint_to_write_has_the_time_of_storage(step, phase):
    """All wrote slowly, and none faster than another: it was left for nothing after a minute."""
    drive = running(step, nodes=TWO, max_dp=2, save_every=20)
    drive.do(ev.Tick(), after_s=100.0)
    assert drive.state.phase is phase
    drive.do(ev.Tick(), after_s=30.0)
    assert drive.state.phase is Phase.FENCING


def test_one_that_is_written_gives_it_no_more_time():
    drive = running(20, nodes=TWO, max_dp=2, save_every=20)
    drive.save(20)
    drive.commit(20)
    drive.steps(21)
    drive.do(ev.Tick(), after_s=100.0)
    assert drive.state.phase is Phase.FENCING


def test_a_mesh_that_may_still_grow_waits_anew_after_a_restart():
    drive = Drive(nodes=TWO, max_dp=2)
    drive.do(ev.WorkerReady(worker="worker-0", node="head", pid=1))
    drive.do(ev.ControllerRestarted(down_s=30.0), after_s=30.0)
    gather_s = drive.controller.options.timers.gather_s(starting=True)
    assert drive.state.deadlines.gather_s == drive.now_s + gather_s
    assert len(of(cmd.Form, tick(drive))) == 1
