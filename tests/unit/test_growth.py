"""What the controller's state and its events cost at 16,384 ranks, and after many generations:
control A7 and C.
"""

import json

from control_drive import Drive, running
from counted import lines_run

from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.codec import encode

PER_NODE = 8


def lines_of(ranks):
    """Of one that is ready with a device, and of one that dies on a node that leaves."""
    nodes = tuple((f"n{number}", PER_NODE) for number in range(ranks // PER_NODE))
    drive = Drive(nodes=nodes, max_dp=ranks)
    drive.do(ev.NodeDraining(node="n3", cause="Ray drains it"))
    one, other = drive.state.roster.on("n1")[0], drive.state.roster.on("n3")[0]
    events = (
        ev.WorkerReady(worker=one.name, node="n1", pid=1, device=3),
        ev.WorkerLost(worker=other.name, cause="killed"),
    )
    return [lines_run(drive.controller.handle, event, drive.now_s + 1.0) for event in events]


def test_a_word_about_a_worker_looks_at_its_own_node_only():
    """control A7: `roster.on` looked at all workers, 6.4 s for 16,384 of them."""
    costs = zip(lines_of(16_384), lines_of(64), strict=True)
    assert all(large < 1.2 * small for large, small in costs)


def size_of(drive):
    return len(json.dumps(encode(State, drive.state)))


def grown(ranks):
    """By how many bytes the state grows with a generation."""
    nodes = tuple((f"n{number}", PER_NODE) for number in range(ranks // PER_NODE))
    drive = running(10, nodes=nodes, max_dp=ranks)
    sizes = []
    for number in range(12):
        step, generation = drive.state.step, drive.state.last_generation
        drive.all(ev.GroupBroken, error="connection reset", workers=drive.members[:50])
        drive.park(step, held_in=generation, generation=generation)
        drive.train(step + 1)
        if number in (3, 11):
            sizes.append(size_of(drive))
    return (sizes[1] - sizes[0]) / 8


def test_the_state_does_not_grow_with_the_ranks_of_generations_that_are_over():
    """control C: 360 bytes a rank and generation, 0.6 GB at 16,384 ranks and 100 generations."""
    small, large = grown(16), grown(192)
    assert large < 1.1 * small
    assert large < 1500


def test_what_was_joined_and_lost_is_told_of_a_few_by_name():
    drive = running(10, nodes=tuple((f"n{number}", 8) for number in range(128)), max_dp=1024)
    assert len(drive.state.reason) < 200
    victims = drive.members[:100]
    drive.lose(*victims)
    drive.park(10, held_in=1)
    assert "and 92 more" in drive.state.current.reason
    assert len(drive.state.current.reason) < 2000


def test_of_many_that_join_a_few_are_named():
    drive = running(10, nodes=(("n0", 8),), max_dp=64)
    drive.do(*(ev.NodeJoined(node=f"n{number}", slots=8) for number in range(1, 8)))
    drive.ready()
    while drive.state.phase == "running":
        drive.tick()
    drive.park(10, drained=True)
    assert drive.state.current.reason.endswith(" and 48 more joined")
