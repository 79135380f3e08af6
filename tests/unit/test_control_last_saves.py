"""What is saved last, and what waits for it, when storage is slow."""

import pytest
from control_drive import of, running

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import Phase


def test_a_stop_amid_the_last_steps_waits_for_files_and_not_for_a_boundary():
    """All train to the last step before the stop reaches them: storage has its own limit."""
    drive = running(78)
    drive.do(ev.StopRequested(reason="enough"))
    drive.steps(80)
    drive.do(ev.Tick(), after_s=60.0)
    assert drive.state.phase is Phase.DRAINING
    drive.park(80, drained=True)
    drive.save(80)
    drive.commit(80)
    assert drive.state.phase is Phase.FINISHED


def test_a_loss_as_the_last_commit_is_under_way_has_nothing_written_twice():
    """That commit is refused, and asked for once more: whoever died has written its part before."""
    drive = running(80)
    assert len(of(cmd.Commit, drive.save(80))) == 1
    commands = drive.lose("worker-0") + drive.park(80)
    assert of(cmd.SaveHeld, commands) == []
    refused = ev.CommitFailed(generation=1, step=80, error="connection reset")
    assert len(of(cmd.Commit, drive.do(refused))) == 1
    drive.commit(80)
    assert drive.state.phase is Phase.FINISHED


@pytest.mark.parametrize("writes", [True, False])
def test_a_boundary_is_waited_for_as_long_as_members_may_wait_for_storage(writes):
    """Each waits at the next save until what it wrote before is written."""
    drive = running(20, save_every=10)
    drive.save(20, workers=drive.members[:1] if writes else drive.members)
    drive.do(ev.Amended(changes=()))
    drive.do(ev.ScaleRequested(nodes=1))
    assert drive.state.phase is Phase.DRAINING
    commands = drive.do(ev.Tick(), after_s=60.0)
    assert bool(of(cmd.Fence, commands)) is not writes
