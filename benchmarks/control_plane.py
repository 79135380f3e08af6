"""What a controller of 16,384 ranks on 2,048 nodes spends, from a lost node to all orders and else.

With the actor's own part: what is heard is written down, what is decided is dealt to the nodes and
encoded. The peer is a budget: seconds of one processor, bytes. That costs grow with the number of
ranks and not with its square is counted in tests/unit/test_forms.py; here stands what they are.
"""

import argparse
import pickle
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from typing import Any

from measuring.rows import Row, cost, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # their problems

import sized
from control_drive import Drive, of
from control_values import records

from remesh.actors.agent.words import FormRanks, NodeWord
from remesh.actors.controller.inbox import Inbox
from remesh.actors.controller.starting import CONTROLLER_THREADS
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.links.forms import StoreAddress, forms_by_node
from remesh.actors.links.heard_words import HeardWords, without_known
from remesh.actors.orders import VaultMap
from remesh.orchestrator.accounts import snapshot
from remesh.orchestrator.accounts.snapshot import Snapshot
from remesh.orchestrator.accounts.tally import Tally
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

WorkerEvent = WorkerParked | WorkerFormed | WorkerRestored | FilesSaved

NODES = 2048
STEP = 10
UNHEARD = 9  # steps that each member tells of as it parks
STORE = StoreAddress(host="10.0.0.1", port=4000, secret=b"s" * 32)


class Recovery:
    """A node of a mesh that trains is lost. What is said is heard by as many threads as an actor
    has for it, and written down, while one handles it.
    """

    def __init__(self, folder: Path) -> None:
        self.drive: Drive = sized.a_lost_part_among(NODES)[0]
        self.journal = JournalWriter(folder, 1, self.drive.controller.options)
        self.inbox = Inbox(self.journal, lambda: self.drive.now_s)
        self.words = HeardWords(self._take)
        self.first: Counter[str] = Counter()
        self.orders: dict[str, FormRanks] = {}
        self.order_bytes = 0

    def run(self) -> None:
        lost = "node-00009"
        self.inbox.put(NodeLost(node=lost, cause="no sign of life for 1.5 s"))
        self._handle()
        life = self.drive.state.current
        told = records(STEP + 1, STEP + UNHEARD, 1.0)
        self._say(
            WorkerParked(
                worker=name,
                generation=life.generation,
                at_step=STEP + UNHEARD,
                drained=False,
                held_in=life.generation,
                records=told,
            )
            for name in self.drive.members
        )
        form = of(Form, self.drive.commands)[-1]
        self.orders = forms_by_node(form, STORE, timers=self._timers, vaults=self._vaults(form))
        self.order_bytes = sum(len(pickle.dumps(order)) for order in self.orders.values())

    def go_on(self) -> None:
        """The members come to train."""
        life = self.drive.state.current
        generation, step, members = life.generation, life.from_step, self.drive.members
        self._say(
            WorkerFormed(worker=name, generation=generation, form_s=taken)
            for name, taken in zip(members, took(members), strict=True)
        )
        self._say(
            WorkerRestored(worker=name, generation=generation, at_step=step, restore_s=taken)
            for name, taken in zip(members, took(members), strict=True)
        )

    def save(self) -> None:
        """All files of a checkpoint are told."""
        generation = self.drive.state.current.generation
        file = ShardFile(name="part", size_bytes=1, digest="0" * 16)
        self._say(
            FilesSaved(worker=name, generation=generation, step=STEP, files=(file,))
            for name in self.drive.members
        )

    @property
    def _timers(self) -> Any:
        return self.drive.controller.options.timers

    def _say(self, events: Iterable[WorkerEvent]) -> None:
        """Each node in a word of its own."""
        known = self.drive.state.roster.workers
        by_node: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_node[known[event.worker].node].append(event)
        words: SimpleQueue[NodeWord] = SimpleQueue()
        for node, told in by_node.items():
            first = self.first[node] + 1
            self.first[node] += len(told)
            words.put(NodeWord(node=node, agent=1, first=first, events=(*told,), incarnation=1))
        threads = [
            threading.Thread(target=self._hear, args=(words,))
            for _ in range(CONTROLLER_THREADS["beats"])
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._handle(0.01)
        self._handle()

    def _hear(self, words: "SimpleQueue[NodeWord]") -> None:
        with suppress(Empty):
            while True:
                self.words.take(words.get_nowait())

    def _take(self, events: Iterable[Event]) -> None:
        self.inbox.put_all(without_known(event, self.drive.state) for event in events)

    def _handle(self, wait_s: float = 0.0) -> None:
        while found := self.inbox.get(wait_s):
            self.drive.do(found[0])

    @staticmethod
    def _vaults(form: Form) -> VaultMap:
        nodes = sorted({member.node for member in form.members})
        return VaultMap(
            addresses=dict.fromkeys(nodes, "10.0.0.2:4000"),
            buddies=dict(zip(nodes, nodes[1:] + nodes[:1], strict=True)),
            token="t" * 32,
        )


def took(members: Sequence[str]) -> list[float]:
    """Seconds, to the millisecond, another for each."""
    chance = Random(7)
    return [round(chance.uniform(0.1, 0.9), 3) for _ in members]


def snapshot_bytes(there: Snapshot) -> int:
    return len(journal.encode_values(snapshot.encode(there)))


def taken_s(work: Callable[[], object]) -> float:
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def rows(rounds: int) -> list[Row]:
    times: dict[str, list[float]] = {}
    recovery_bytes: list[int] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            recovery = Recovery(Path(folder))
            before = recovery.journal.num_bytes
            times.setdefault("a lost node, to all orders", []).append(taken_s(recovery.run))
            times.setdefault("its members come to train", []).append(taken_s(recovery.go_on))
            recovery_bytes.append(recovery.journal.num_bytes - before)
            times.setdefault("a checkpoint's files", []).append(taken_s(recovery.save))
        machine = recovery.drive.controller
        times.setdefault("a view", []).append(taken_s(partial(view_of, machine)))
        there = Snapshot(state=machine.state, tally=Tally())
        times.setdefault("a snapshot", []).append(taken_s(partial(snapshot_bytes, there)))
    budgets = {"a view": 0.05}
    found = [
        cost(case, "budget", (statistics.median(taken), budgets.get(case, 1.0)), "s")
        for case, taken in times.items()
    ]
    found.append(cost("messages with orders", "nodes", (len(recovery.orders), NODES), "messages"))
    found.append(cost("bytes of all orders", "budget", (recovery.order_bytes / 1e6, 30.0), "MB"))
    journal_mb = statistics.median(recovery_bytes) / 1e6
    found.append(cost("journal of a recovery", "budget", (journal_mb, 1.0), "MB"))
    found.append(cost("bytes of a snapshot", "budget", (snapshot_bytes(there) / 1e6, 16.0), "MB"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round")
    report("control_plane", rows(1 if parser.parse_args().quick else 5))


if __name__ == "__main__":
    main()
