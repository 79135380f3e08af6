"""Whatever a controller is told, in whatever order: it decides, waits for a moment, and replays."""

from collections import Counter
from random import Random

import pytest
from control_values import options
from drawn_events import KINDS, LADDERS, NODES, Draw

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import encode, replay
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import ENDED, MOVES

CHUNKS, EACH, EVENTS = 50, 30, 60


def drawn_options(chance):
    return options(
        steps=chance.choice([20, 60]),
        ladder=chance.choice(LADDERS[:3]),
        min_workers=chance.choice([1, 1, 2]),
        spares=chance.choice([0, 1]),
        min_nodes=chance.choice([1, 1, 2]),
        max_failures=chance.choice([2, 30]),
        wait_limit_s=chance.choice([60.0, 600.0]),
    )


def play(seed, told):
    """One run of drawn events, each of which is handled, journalled and counted."""
    chance = Random(seed)
    controller = Controller(drawn_options(chance))
    draw = Draw(seed, controller, devices=chance.random() < 0.5)
    events = [ev.NodeJoined(node=name, slots=2, head=name == "head") for name in NODES[:2]]
    events.append(ev.RunStarted())
    now_s, lines = 0.0, []
    for _ in range(EVENTS):
        event = events.pop(0) if events else draw.event(now_s)
        told[type(event)] += 1
        lines.append(encode(event, now_s))
        controller.handle(event, now_s)
        state, due_s = controller.state, controller.next_deadline_s()
        assert state.phase in MOVES
        assert due_s is not None or state.phase in ENDED or not state.started, state.phase
        assert due_s is None or state.phase not in ENDED, "a run that is over waits for nothing"
        if state.phase in ENDED:
            break
        wait_s = chance.choice([0.001, 0.001, 0.1, 0.1, 1.0, 8.0])
        now_s = due_s if due_s is not None and chance.random() < 0.1 else now_s + wait_s
    assert replay(lines, controller.options).state == controller.state
    return controller.state.phase


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_sequence_of_events_raises_and_none_waits_for_ever(chunk):
    for seed in range(chunk * EACH, (chunk + 1) * EACH):
        play(seed, Counter())


def test_each_kind_of_event_is_among_them():
    told = Counter()
    for seed in range(2 * EACH):
        play(seed, told)
    assert set(told) == set(KINDS)
