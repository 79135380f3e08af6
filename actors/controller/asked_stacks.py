"""Where the ranks of a live run stand in the code: what a user asks for who sees it hang."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from remesh.orchestrator.accounts.view import WorkerView, view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.user_errors import UserError

MOST_WORKERS = 32  # at 24 KiB each an answer stays below the megabyte that a server sends
LIMIT_S = 8.0

# Workers by node and a limit in seconds, to their stacks by worker.
AskAgents = Callable[[Mapping[str, Sequence[str]], float], Mapping[str, str]]


class AskedStacks:
    """Asks the agents, so that a worker that hangs is not asked itself."""

    def __init__(self, machine: Controller, lock: Lock, ask_agents: AskAgents) -> None:
        self._machine = machine
        self._lock = lock
        self._ask_agents = ask_agents

    def ask(self, wish: Mapping[str, Any]) -> dict[str, str]:
        """All ranks, lowest first, or `{"worker": NAME}`. Raises: UserError if there is none."""
        found = self._chosen(wish.get("worker"))
        by_node = defaultdict(list)
        for one in found[:MOST_WORKERS]:
            by_node[one.node].append(one.worker)
        told = self._ask_agents(by_node, LIMIT_S)
        parts = [_part(one, told.get(one.worker)) for one in found[:MOST_WORKERS]]
        if left := found[MOST_WORKERS:]:
            parts.append(f"{len(left)} more are left out; name one with --worker\n")
        return {"text": "\n".join(parts)}

    def _chosen(self, name: object) -> list[WorkerView]:
        with self._lock:
            workers = view_of(self._machine).workers
        if name is not None:
            found = [one for one in workers if one.worker == name]
        else:
            ranks = {one.rank: one for one in workers if one.rank is not None}
            found = [ranks[rank] for rank in sorted(ranks)]
        if not found:
            there = ", ".join(one.worker for one in workers[:MOST_WORKERS]) or "none"
            raise UserError(f"the run has no {name or 'rank'} now; its workers are: {there}")
        return found


def _part(one: WorkerView, stacks: str | None) -> str:
    place = one.state if one.rank is None else f"rank {one.rank}"
    told = stacks or f"the agent of its node did not answer within {LIMIT_S:g} s\n"
    return f"-- {one.worker}, {place}, on {one.node} --\n{told}"
