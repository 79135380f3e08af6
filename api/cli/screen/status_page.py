"""A run as `remesh status` shows it: a page of any width, from what the run tells of itself."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from remesh.cli.screen.flow import Bar, Flow, Hanging, plain_text
from remesh.cli.screen.run_panel import BAD, FAINT, GOOD, LEAST_CELLS, MOST_CELLS, measures
from remesh.cli.screen.said import (
    duration_text,
    moment_text,
    share_text,
    state_text,
    wait_text,
)
from remesh.cli.screen.strips import ASCII, FULL, timeline
from remesh.orchestrator.job.driver_words import GenerationMark, RunStatus, RunWait
from remesh.orchestrator.user_text import count

MOST_NODES = 32
MOST_GENERATIONS = 20
INDENT = 2
TRAINS = "running"

_STYLES = {TRAINS: GOOD, "finished": GOOD, "failed": BAD}

Told = Mapping[str, Any]


class StatusPage:
    """`told` are plain JSON values; `now_s` is the moment at which they were asked for."""

    def __init__(self, told: Told, now_s: float) -> None:
        self._told = told
        self._now_s = now_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        told, now_s = self._told, self._now_s
        status = _status(told, now_s)
        glyphs = ASCII if options.ascii_only else FULL
        cells = max(LEAST_CELLS, min(MOST_CELLS, options.max_width // 3))
        yield plain_text(told["folder"], "bold")
        yield Hanging(Text(), plain_text(_sentence(status), _STYLES.get(status.phase, "yellow")))
        for said in _aside(told):
            yield Hanging(Text(), plain_text(said, "yellow"))
        yield Flow(list(_steps(status)))
        yield Bar(status.step, status.steps)
        yield Flow(list(measures(status, cells, glyphs)))
        yield Flow([plain_text(part) for part in _mesh(told, status)])
        strip = timeline(status.generations, status.step, cells, glyphs)
        if strip:
            yield plain_text(f"generations {strip}", FAINT)
        yield from _nodes(told)
        yield from _generations(told["generations"], now_s)


def _aside(told: Told) -> Iterator[str]:
    """What is not as with any run: damaged files, another run before it, changes on the way."""
    yield from told.get("damage", ())
    if told["origin"]:
        yield f"branched off {told['origin']}"
    if told["asked_layout"]:
        yield f"asked for {told['asked_layout']}, with remesh scale --layout"
    for one in told["amendments"]:
        old = "unset" if one["old"] is None else one["old"]
        yield f"from step {one['step']} on: {one['key']} {old} -> {one['new']}"


def _status(told: Told, now_s: float) -> RunStatus:
    """The same values as a driver has them."""
    last, saved_s = told["last"], told["saved_at_s"]
    return RunStatus(
        phase=told["phase"],
        step=told["step"],
        steps=told["steps"],
        loss=None if last is None else _number(last["did"]["loss"]),
        tokens_per_s=told["tokens_per_s"],
        layout=told["layout"],
        workers=sum(worker["rank"] is not None for worker in told["workers"]),
        nodes=len(told["nodes"]),
        ended=told["ended"],
        reason=told["reason"],
        step_s=told["step_s"],
        left_s=told["left_s"],
        goodput=told["goodput"],
        saved_step=told["committed_step"],
        saved_ago_s=None if saved_s is None else max(0.0, now_s - saved_s),
        losses=tuple(map(_number, told["losses"])),
        wait=_wait(told["wait"], now_s),
        generations=tuple(map(_mark, told["generations"])),
    )


def _number(value: float | None) -> float:
    """JSON has no word for what is not finite."""
    return math.nan if value is None else value


def _wait(told: Told | None, now_s: float) -> RunWait | None:
    if told is None:
        return None
    until_s = told["until_s"]
    limit_s = None if until_s is None else max(0.0, until_s - now_s)
    return RunWait(text=told["text"], have=told["have"], need=told["need"], limit_s=limit_s)


def _mark(life: Told) -> GenerationMark:
    return GenerationMark(
        generation=life["generation"],
        from_step=life["from_step"],
        started_s=life["started_s"],
        text=life["reason"],
    )


def _sentence(status: RunStatus) -> str:
    """The state; why it began stands beside its generation while it trains."""
    if status.wait is not None:
        return wait_text(status.wait)
    if status.phase == TRAINS or not status.reason:
        return state_text(status.phase)
    return f"{state_text(status.phase)}: {status.reason}"


def _steps(status: RunStatus) -> Iterator[Text]:
    yield plain_text(f"step {status.step:,}/{status.steps:,}")
    yield plain_text(share_text(status.step, status.steps))
    if status.left_s:
        yield plain_text(f"left {duration_text(status.left_s)}")


def _mesh(told: Told, status: RunStatus) -> Iterator[str]:
    """What there is, or was at the end, and what has gone wrong so far."""
    if status.layout:
        yield f"mesh {status.layout}"
    if status.nodes:
        yield f"{count(status.workers, 'worker')} on {count(status.nodes, 'node')}"
    if told["starts"] > 1:
        yield f"start {told['starts']}"
    yield count(told["failures"], "failure")
    for key, noun in (("lost_steps", "lost step"), ("skipped_steps", "skipped step")):
        if told[key]:
            yield count(told[key], noun)


def _nodes(told: Told) -> Iterator[Flow | Text]:
    workers: defaultdict[str, list[Told]] = defaultdict(list)
    for worker in told["workers"]:
        workers[worker["node"]].append(worker)
    nodes: Sequence[Told] = told["nodes"]
    for node in nodes[:MOST_NODES]:
        head = ", the head" if node["head"] else ""
        places = f"{node['workers']} of {count(node['slots'], 'place')} taken"
        first = plain_text(f"node {node['node']}{head}: {node['state']}, {places}", "bold")
        parts = [plain_text(_worker(worker)) for worker in workers[node["node"]]]
        yield Flow([first, *parts], indent=INDENT)
    if len(nodes) > MOST_NODES:
        yield plain_text(f"and {count(len(nodes) - MOST_NODES, 'node')} more: --json", FAINT)


def _worker(worker: Told) -> str:
    doing = worker["state"] if worker["rank"] is None else f"rank {worker['rank']}"
    process = f", pid {worker['pid']}" if worker["pid"] else ""
    return f"{worker['worker']} ({doing}{process})"


def _generations(lives: Sequence[Told], now_s: float) -> Iterator[Flow | Text | Hanging]:
    earlier = len(lives) - MOST_GENERATIONS
    if earlier > 0:
        yield plain_text(f"{count(earlier, 'earlier generation')}: --json", FAINT)
    for life in lives[-MOST_GENERATIONS:]:
        yield Flow([plain_text(part) for part in _life(life, now_s)], indent=INDENT)
        yield Hanging(plain_text(" " * INDENT), plain_text(life["reason"], FAINT))


def _life(life: Told, now_s: float) -> Iterable[str]:
    yield f"generation {life['generation']}"
    yield moment_text(life["started_s"], now_s)
    yield f"{life['layout']}, {count(life['workers'], 'worker')}"
    if life["recovery_s"] is not None:
        yield f"back after {duration_text(life['recovery_s'])}"
    if life["lost_steps"]:
        yield count(life["lost_steps"], "lost step")
