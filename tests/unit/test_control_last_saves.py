"""What is saved last, when storage is slow."""

from control_drive import running

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
