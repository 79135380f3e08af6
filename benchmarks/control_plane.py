"""What a controller of 16,384 ranks on 2,048 nodes spends, from a lost node to all orders and else.

With the actor's own part: what is heard is written down, what is decided is dealt to the nodes and
encoded. The peer is a budget: seconds of one processor, bytes. That costs grow with the number of
ranks and not with its square is counted in tests/unit/test_forms.py; here stands what they are.
"""

import argparse
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rows import Row, cost, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # their problems

import sized
from control_drive import Drive, of
from control_values import records

from remesh.actors.agent.words import FormRanks
from remesh.actors.links.forms import StoreAddress, forms_by_node
from remesh.actors.links.heard_words import without_known
from remesh.actors.orders import VaultMap
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.events import (
    Event,
    FilesSaved,
    NodeLost,
    WorkerFormed,
    WorkerParked,
    WorkerRestored,
)
from remesh.parallel.state.root_manifest import ShardFile

NODES = 2048
STEP = 10
UNHEARD = 9  # steps that each member tells of as it parks
STORE = StoreAddress(host="10.0.0.1", port=4000, secret=b"s" * 32)


class Recovery:
    """A node of a mesh that trains is lost."""

    def __init__(self) -> None:
        self.drive: Drive = sized.a_lost_part_among(NODES)[0]
        self.journal_bytes = 0
        self.orders: dict[str, FormRanks] = {}
        self.order_bytes = 0

    def run(self) -> None:
        self._hear([NodeLost(node="node-00009", cause="no sign of life for 1.5 s")])
        told = records(STEP + 1, STEP + UNHEARD, 1.0)
        life = self.drive.state.current
        for name in self.drive.members:
            parked = WorkerParked(
                worker=name,
                generation=life.generation,
                at_step=STEP + UNHEARD,
                drained=False,
                held_in=life.generation,
                records=told,
            )
            self._hear([parked])
        form = of(Form, self.drive.commands)[-1]
        self.orders = forms_by_node(form, STORE, timers=self._timers, vaults=self._vaults(form))
        self.order_bytes = sum(len(pickle.dumps(order)) for order in self.orders.values())

    def go_on(self) -> None:
        """The members come to train."""
        life = self.drive.state.current
        generation, step = life.generation, life.from_step
        for name in self.drive.members:
            formed = WorkerFormed(worker=name, generation=generation, form_s=0.123)
            self._hear([formed])
        for name in self.drive.members:
            restored = WorkerRestored(
                worker=name, generation=generation, at_step=step, restore_s=0.123
            )
            self._hear([restored])

    def save(self) -> None:
        """All files of a checkpoint are told."""
        generation = self.drive.state.current.generation
        file = ShardFile(name="part", size_bytes=1, digest="0" * 16)
        for name in self.drive.members:
            saved = FilesSaved(worker=name, generation=generation, step=STEP, files=(file,))
            self._hear([saved])

    @property
    def _timers(self) -> Any:
        return self.drive.controller.options.timers

    def _hear(self, events: Iterable[Event]) -> None:
        for event in events:
            line = journal.encode(without_known(event, self.drive.state), self.drive.now_s)
            self.journal_bytes += len(line)
            self.drive.do(event)

    @staticmethod
    def _vaults(form: Form) -> VaultMap:
        nodes = sorted({member.node for member in form.members})
        return VaultMap(
            addresses=dict.fromkeys(nodes, "10.0.0.2:4000"),
            buddies=dict(zip(nodes, nodes[1:] + nodes[:1], strict=True)),
            token="t" * 32,
        )


def taken_s(work: Callable[[], object]) -> float:
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def rows(rounds: int) -> list[Row]:
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        recovery = Recovery()
        times.setdefault("a lost node, to all orders", []).append(taken_s(recovery.run))
        times.setdefault("its members come to train", []).append(taken_s(recovery.go_on))
        recovery_bytes = recovery.journal_bytes
        times.setdefault("a checkpoint's files", []).append(taken_s(recovery.save))
        machine = recovery.drive.controller
        times.setdefault("a view", []).append(taken_s(lambda: view_of(machine)))  # noqa: B023
    budgets = {"a view": 0.05}
    found = [
        cost(case, "budget", (statistics.median(taken), budgets.get(case, 1.0)), "s")
        for case, taken in times.items()
    ]
    found.append(cost("messages with orders", "nodes", (len(recovery.orders), NODES), "messages"))
    found.append(cost("bytes of all orders", "budget", (recovery.order_bytes / 1e6, 30.0), "MB"))
    found.append(cost("journal of a recovery", "budget", (recovery_bytes / 1e6, 1.0), "MB"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round")
    report("control_plane", rows(1 if parser.parse_args().quick else 5))


if __name__ == "__main__":
    main()
