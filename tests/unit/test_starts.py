"""How workers are started: in how much time, how many at once, and where spares are (security B1,
B119).
"""

import pytest
from control_drive import Drive, of, running

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev


def starting(drive, node="head"):
    return [w.name for w in drive.state.roster.on(node) if w.state == "starting"]


def test_one_that_freezes_before_there_is_a_mesh_is_counted_no_more():
    drive = Drive(nodes=(("head", 1), ("b", 1), ("c", 1)), max_dp=3)
    for worker, node in (("worker-0", "head"), ("worker-1", "b")):
        drive.do(ev.WorkerReady(worker=worker, node=node, pid=1))
    assert drive.state.reason.endswith("have 2, need 3")
    drive.do(ev.WorkerFrozen(worker="worker-1", silent_s=0.6))
    assert drive.state.reason.endswith("have 1, need 3")


def late(drive):
    """The next starts are late, and their processes are gone."""
    while not (commands := of(cmd.EndWorker, drive.tick())):
        pass
    drive.lose(*(command.worker for command in commands))
    return commands


def test_on_a_busy_host_each_try_has_twice_the_time_and_fewer_start_at_once():
    """security B1: 16 workers were killed after 60 s and started again, which is more load."""
    drive = Drive(nodes=(("head", 8),), max_dp=8, wait_limit_s=9000.0)
    numbers, limits = [], []
    for _ in range(5):
        numbers.append(len(starting(drive)))
        began_s = drive.now_s
        late(drive)
        limits.append(round(drive.now_s - began_s))
    assert numbers == [8, 4, 2, 1, 1]
    assert limits == [60, 120, 240, 480, 480]
    assert drive.state.budget.total == 5, "however many are late at once are one failure"
    drive.ready()
    assert len(starting(drive)) == 7, "once one has started there is no hurry to hold back"


def test_another_node_is_not_held_back():
    drive = Drive(nodes=(("head", 4), ("b", 4)), max_dp=8, min_workers=8)
    late(drive)
    assert [len(starting(drive, node)) for node in ("head", "b")] == [2, 2]
    drive.do(ev.WorkerReady(worker=starting(drive, "b")[0], node="b", pid=1))
    assert [len(starting(drive, node)) for node in ("head", "b")] == [2, 3]


def test_who_waits_is_told_why_the_newest_start_failed():
    drive = Drive(nodes=(("head", 2),), max_dp=2)
    late(drive)
    told = drive.state.reason
    trouble = "worker-0 on head and 1 other did not start within 60 s"
    assert told == f"waiting for workers: have 0, need 1; {trouble}"
    drive.do(ev.WorkerLost(worker=starting(drive)[0], cause="run other holds the CPUs of head"))
    assert drive.state.reason.endswith("was lost: run other holds the CPUs of head")
    drive.ready()
    assert not drive.state.start_trouble


@pytest.mark.parametrize("trained", [None, 12], ids=["before it trains", "while it trains"])
def test_a_rank_that_dies_after_each_start_ends_the_run_after_one_failure_more(trained):
    """B119: fast and slow, the number is exact and the last error is told."""
    drive = Drive(nodes=(("head", 1),), max_dp=1, max_failures=2, healthy_steps=1000)
    deaths = 0
    while drive.state.phase != "failed" and deaths < 9:
        drive.ready()
        if trained:
            drive.train(trained)
        drive.lose(*drive.state.roster.workers)
        deaths += 1
    assert deaths == 3
    (end,) = of(cmd.End, drive.commands)
    assert end.reason.startswith("3 failures, more than elastic.max_failures=2; the last: worker-2")


def test_so_does_one_that_dies_while_the_first_mesh_waits_for_others():
    drive = Drive(nodes=(("head", 1), ("b", 1)), max_dp=2, min_workers=2, max_failures=2)
    deaths = 0
    while drive.state.phase != "failed" and deaths < 9:
        (worker,) = [w.name for w in drive.state.roster.on("b")]
        drive.do(ev.WorkerReady(worker=worker, node="b", pid=1))
        drive.lose(worker)
        deaths += 1
    assert deaths == 3


def test_spares_stand_on_other_nodes_than_each_other():
    drive = Drive(nodes=(("head", 4), ("b", 4), ("c", 4)), max_dp=4, spares=2)
    on = [len(drive.state.roster.on(node)) for node in ("head", "b", "c")]
    assert on == [2, 2, 2]


def test_a_spare_on_another_node_stands_in_for_a_member():
    drive = running(10, nodes=(("head", 3), ("b", 3)), max_dp=4, spares=2)
    members = {m.worker: m.node for m in drive.state.current.members}
    spares = {w.name: w.node for w in drive.state.roster.workers.values()}
    spares = {name: node for name, node in spares.items() if name not in members}
    assert sorted(spares.values()) == ["b", "head"]
    victim = next(name for name, node in members.items() if node == "b")
    drive.lose(victim)
    drive.park(10, held_in=1)
    (new,) = {m.worker for m in drive.state.current.members} - members.keys()
    assert spares[new] == "head"


def started_on(commands):
    return [start.node for start in of(cmd.StartWorker, commands)]


def test_where_a_node_is_warm_a_dead_worker_is_replaced_at_once():
    """It waited until the mesh had made a step again: 1 s of 1.1 s until it was ready."""
    drive = running(10)
    victim = drive.state.roster.workers[drive.members[-1]]
    assert started_on(drive.lose(victim.name)) == [victim.node]
    drive.ready()
    drive.park(10, held_in=1)
    assert len(drive.state.current.members) == 4, "it is there before the others have parked"


def recovering(**options):
    """A node has died, and another has come, which is not warm."""
    drive = running(10, nodes=(("head", 2), ("b", 2)), **options)
    assert started_on(drive.do(ev.NodeLost(node="b", cause="gone"))) == []
    return drive, drive.do(ev.NodeJoined(node="c", slots=4))


def test_anywhere_else_it_waits_until_the_mesh_has_made_a_step():
    drive, commands = recovering()
    commands += drive.park(10, held_in=1)
    commands += drive.all(ev.WorkerFormed, form_s=0.01)
    commands += drive.all(ev.WorkerRestored, at_step=10, restore_s=0.01)
    assert started_on(commands) == [], "it would take the processors from the recovery"
    before = len(drive.commands)
    drive.steps(11)
    assert started_on(drive.commands[before:]) == ["c", "c"]


def test_a_run_that_has_no_spare_left_starts_one_as_soon_as_the_mesh_has_its_state():
    drive, commands = recovering(spares=1)
    commands += drive.park(10, held_in=1)
    commands += drive.all(ev.WorkerFormed, form_s=0.01)
    assert started_on(commands) == [], "it would take the processors from the recovery"
    restored = drive.all(ev.WorkerRestored, at_step=10, restore_s=0.01)
    assert started_on(restored) == ["c", "c", "c"]


def test_a_node_that_the_run_has_left_is_not_warm_any_more():
    drive = running(10)
    drive.do(ev.ScaleRequested(nodes=1))
    assert drive.state.roster.nodes["head"].warm
    assert not drive.state.roster.nodes["b"].warm
