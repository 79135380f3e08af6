"""What is held against a host, and what of that a run still knows at its next start: control A6,
A16.
"""

from control_drive import Drive, of, running

from remesh.orchestrator.control.memory.carrying import carried_of
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.carried import Carried, LostHost
from remesh.orchestrator.control.words.codec import decode, encode
from remesh.orchestrator.control.words.records import CheckpointState

THREE = (("head", 1), ("b", 1), ("c", 1))


def silent(drive, node):
    drive.do(ev.NodeLost(node=node, cause="no sign of life for 1.6 s"))
    drive.park(drive.state.step, held_in=drive.state.last_generation)


def comes_back(drive, node, host=""):
    drive.do(ev.NodeJoined(node=node, slots=1, host=host))


def cools_down(drive, node):
    for _ in range(9):
        if drive.state.roster.nodes[node].state != "quarantined":
            return
        drive.tick()


def test_a_node_that_missed_its_beats_comes_back_under_its_name_after_a_cool_down():
    """control A6: it was never used again."""
    drive = running(10, nodes=THREE, max_dp=3)
    silent(drive, "b")
    drive.train(12)
    old = "worker-1"
    comes_back(drive, "b")
    assert drive.state.roster.nodes["b"].state == "quarantined"
    before = encode(State, drive.state)
    drive.do(ev.WorkerReady(worker=old, node="b", pid=1))
    drive.do(ev.WorkerLost(worker=old, cause="its process ended"))
    assert encode(State, drive.state) == before, "words of those that were there before"
    cools_down(drive, "b")
    assert drive.state.roster.nodes["b"].state == "used"
    drive.ready()
    assert [worker.name for worker in drive.state.roster.on("b")] == ["worker-3"]


def test_two_nodes_that_were_given_up_and_live_count_as_one_failure():
    drive = running(10, nodes=THREE, max_dp=3)
    silent(drive, "b")
    drive.train(12)
    assert drive.state.budget.failures == 1
    comes_back(drive, "b")
    assert drive.state.budget.failures == 0
    silent(drive, "c")
    drive.train(14)
    comes_back(drive, "c")
    assert drive.state.budget.failures == 1, "a node that stalls each time does not go on for ever"


def test_a_node_that_comes_back_under_another_name_had_died():
    drive = running(10, nodes=THREE, max_dp=3)
    silent(drive, "b")
    comes_back(drive, "b2", host="b")
    assert drive.state.budget.failures == 1
    assert drive.state.roster.nodes["b2"].state == "quarantined"


def two_on_one_host():
    drive = Drive(nodes=(("head", 1),), max_dp=4)
    comes_back(drive, "b1", host="10.0.0.2")
    comes_back(drive, "b2", host="10.0.0.2")
    drive.ready()
    return drive.train(10)


def test_of_two_nodes_of_one_host_the_loss_of_one_keeps_out_no_other():
    drive = two_on_one_host()
    drive.do(ev.NodeLost(node="b1", cause="Ray lost it"))
    comes_back(drive, "b3", host="10.0.0.2")
    assert drive.state.roster.nodes["b3"].state != "quarantined"
    comes_back(drive, "b1", host="10.0.0.2")
    assert drive.state.roster.nodes["b1"].state == "quarantined"


def test_once_none_of_its_nodes_is_left_the_host_is_kept_out():
    drive = two_on_one_host()
    drive.do(ev.NodeLost(node="b1", cause="Ray lost it"))
    drive.do(ev.NodeLost(node="b2", cause="Ray lost it"))
    comes_back(drive, "b3", host="10.0.0.2")
    assert drive.state.roster.nodes["b3"].state == "quarantined"


def test_a_pod_at_another_address_is_a_new_host():
    drive = running(10, nodes=THREE, max_dp=3)
    silent(drive, "b")
    comes_back(drive, "b", host="10.9.9.9")
    assert drive.state.roster.nodes["b"].state == "quarantined", "its name is the same"
    comes_back(drive, "d", host="10.9.9.8")
    assert drive.state.roster.nodes["d"].state != "quarantined"


def resubmitted(drive, **options):
    """The next start, a second later by the same clock."""
    carried = decode(Carried, encode(Carried, carried_of(drive.state)))
    again = Drive(nodes=(), carried=carried, **options)
    again.now_s = drive.now_s + 1.0
    return again


def test_quarantine_and_budget_outlive_a_start_of_the_run():
    drive = running(10, nodes=THREE, max_dp=3, max_failures=1)
    silent(drive, "b")
    again = resubmitted(drive, max_failures=1)
    comes_back(again, "b7", host="b")
    comes_back(again, "head")
    assert again.state.roster.nodes["b7"].state == "quarantined"
    assert again.state.roster.nodes["head"].state == "used"
    again.ready()
    again.train(5)
    again.lose(*again.members)
    (end,) = of(cmd.End, again.commands)
    assert end.reason.startswith("2 failures, more than elastic.max_failures=1")


def test_who_joins_before_the_run_begins_to_act_is_kept_out_too():
    carried = Carried(hosts=(LostHost(host="b", losses=3, last_s=0.0),))
    drive = Drive(nodes=(("head", 1), ("b", 1)), carried=carried)
    assert drive.state.roster.nodes["b"].state == "quarantined"
    assert drive.state.roster.nodes["head"].state == "used"
    cools_down(drive, "b")
    assert drive.state.roster.nodes["b"].state == "used"


def test_healthy_progress_forgives_what_was_carried_over():
    drive = Drive(carried=Carried(failures=8, at_step=0, cause="killed"), healthy_steps=20)
    drive.ready()
    drive.train(19)
    assert drive.state.budget.failures == 8
    drive.steps(20)
    assert drive.state.budget.failures == 0


def test_a_source_that_failed_twice_before_is_not_tried_again():
    newest, older = (CheckpointState(step=step, name=f"step-{step}") for step in (40, 20))
    drive = Drive(nodes=(("head", 1),), max_dp=1, resume=newest, fallbacks=(older,))
    drive.ready()
    for _ in range(2):
        drive.all(ev.RestoreFailed, name="step-40", error="hash differs")
        drive.park(None, held_in=0)
    assert drive.state.current.restore == older
    again = resubmitted(drive, resume=newest, fallbacks=(older,))
    comes_back(again, "head")
    again.ready()
    assert again.state.current.restore == older


def test_what_is_gone_with_its_holders_is_not_mistrusted_at_the_next_start():
    """Another state may be at that step then, and was not taken: the run began anew."""
    drive = running(3, nodes=(("head", 2),), max_dp=2)
    drive.lose(drive.members[-1])
    drive.park(3)
    drive.ready()
    for _ in range(2):
        assert drive.state.current.from_step == 3
        drive.all(ev.RestoreFailed, name="", error="hash differs")
        drive.park(3, held_in=1)
    assert "the peers' state at step 3" in drive.state.checkpoints.avoid
    assert carried_of(drive.state).bad_sources == ()
