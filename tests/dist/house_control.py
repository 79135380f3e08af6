"""A house with the machine of the controller: it decides, with everything real but Ray.

Some workers can be out of reach: nobody tells them anything, kills included, as on a node that is
cut off. What they say is heard all the same.
"""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

from node_house import NODE, House
from waiting import soon

from remesh.actors.agent.words import DrainRanks, EndRank, FenceRanks, SaveRanks
from remesh.actors.controller.carrying_out import CarryingOut
from remesh.actors.node.offers import Room
from remesh.orchestrator.accounts.ledger import Ledger
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.plan.planner import ladder_of

TICK_S = 0.01
# Each rank holds a part of the state that no other has, and takes a snapshot of it each step.
SETTINGS = [
    "train.steps=1000000",
    "train.global_batch=16",
    "checkpoint.every=1000000",
    "checkpoint.snapshot_every=1",
    "zero.stage=3",
    "elastic.max_workers=2",
]


class Reach:
    """What orders go through to the agent: those to workers of `lost` are kept, or come to nothing
    if they are to several.
    """

    def __init__(self, house):
        self.lost = set()
        self._house = house
        self._given, self._kept = [], []

    def start(self, _node, _room):
        """The agent is there."""

    def give(self, _node, order):
        self._given.append(order)

    def send(self):
        given, self._given = self._given, []
        self._tell([order for order in map(self._reaching, given) if order])

    def found_again(self, worker):
        self.lost.discard(worker)
        kept, self._kept = self._kept, []
        self._tell(kept)

    def _tell(self, orders):
        if orders:
            self._house.tell(*orders)

    def _reaching(self, order):
        """As much of it as arrives now."""
        if isinstance(order, EndRank) and order.worker in self.lost:
            self._kept.append(order)
            return None
        if isinstance(order, FenceRanks | DrainRanks | SaveRanks):
            reached = tuple(worker for worker in order.workers if worker not in self.lost)
            return replace(order, workers=reached) if reached else None
        return order


class HouseControl(House):
    """`ledger` has what the machine was told. No checkpoint is ever committed."""

    def __init__(self, spec, *, slots, spares):
        self.machine = Controller(
            Options(
                steps=spec.job.train.steps,
                ladder=ladder_of(spec.job),
                spares=spares,
                max_failures=10**6,
                patience_s=spec.job.elastic.patience_s,
            )
        )
        self.ledger = Ledger()
        self.decided = []
        self.reach = Reach(self)
        self._lock = threading.RLock()
        self._closed = threading.Event()
        super().__init__(spec)
        watch = SimpleNamespace(room=lambda _: Room(node_id="id", slots=slots))
        self._orders = CarryingOut(spec, self.machine, self.reach, watch, host="127.0.0.1")
        self._ticks = threading.Thread(target=self._tick, daemon=True)
        self._ticks.start()
        self.post(ev.NodeJoined(node=NODE, slots=slots, head=True), ev.RunStarted())

    @property
    def state(self):
        return self.machine.state

    @property
    def members(self):
        """Of the mesh that trains, by rank; none while there is none."""
        with self._lock:
            trains = self.state.phase.value == "running"
            return [member.worker for member in self.state.current.members] if trains else []

    def trains(self, step):
        """The workers by rank, once this step has ended and a mesh trains."""
        assert soon(lambda: self.members and self.state.step >= step), self.state.phase
        return self.members

    def records(self):
        """Of the steps that the run stands on."""
        with self._lock:
            owner, steps = self.state.lineage.owner, range(1, self.state.step + 1)
            return [self.ledger.records.get((owner(step), step)) for step in steps]

    def post(self, *events):
        with self._lock:
            for event in events:
                self.ledger.note(event)
                for command in self.machine.handle(event, time.monotonic()):
                    self.decided.append(command)
                    if not isinstance(command, cmd.Announce | cmd.Commit | cmd.End):
                        self._orders.carry_out(command)
                self._orders.end_turn(event)

    def close(self):
        self._closed.set()
        self._ticks.join()
        super().close()

    def _hear(self, word):
        known = len(self.events)
        answer = super()._hear(word)
        self.post(*self.events[known:])
        return answer

    def _tick(self):
        while not self._closed.wait(TICK_S):
            with self._lock:
                due_s = self.machine.next_deadline_s()
                if due_s is not None and due_s <= time.monotonic():
                    self.post(ev.Tick())
                self._orders.settle(idle=True)
