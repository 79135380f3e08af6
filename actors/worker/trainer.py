"""The trainer thread of a worker: it carries out what the worker's machine decides.

Control threads tell the machine what the controller asks for, and free the trainer from wherever it
waits; the trainer tells it how each duty has ended. All of them hold one lock while the machine
decides and while that is told, so that what is told has one order. What is to be done goes to the
trainer thread, one duty after the other.
"""

import queue
import threading
from functools import partial
from typing import NoReturn

from remesh.actors.orders import FormOrder, VaultOrder
from remesh.actors.worker.hands import Hands, OwnDuty
from remesh.actors.worker.laying_out import lay_out
from remesh.actors.worker.saver import Saver
from remesh.actors.worker.tools import TrainerParts
from remesh.orchestrator.worker import duties as do
from remesh.orchestrator.worker import heard
from remesh.orchestrator.worker.reports import Reports
from remesh.orchestrator.worker.seat import Seat
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.threads import heard_thread


class Trainer:
    """`run` is the trainer thread; control threads call the others, which return at once."""

    def __init__(self, parts: TrainerParts) -> None:
        self._parts = parts
        self._seat = Seat(
            worker=parts.worker,
            last_step=parts.job.train.steps,
            save_every=parts.job.checkpoint.every,
            reports=Reports(remember_s=2 * parts.job.timers.lease_s),
        )
        self._fence = GenerationFence()
        saver = Saver(start=parts.start, storage=parts.storage, tell=self._hear)
        self._hands = Hands(parts, self._fence, saver)
        self._deciding = threading.Lock()
        self._orders: dict[int, FormOrder] = {}
        self._duties: queue.SimpleQueue[OwnDuty] = queue.SimpleQueue()

    @property
    def generation(self) -> int:
        """The newest mesh that it was in."""
        return self._seat.generation

    def form(self, order: FormOrder) -> None:
        """To be a rank of a mesh, which ends any that it is in."""
        if self._parts.room:
            self._parts.room.stop()
        with self._deciding:
            self._orders.setdefault(order.generation, order)
        self._hear(
            heard.Called(
                generation=order.generation,
                rank=order.rank,
                size=order.rung.workers,
                from_step=order.from_step,
            )
        )

    def fence(self, generation: int, heard_step: int) -> None:
        """End this generation and all before it; WorkerParked follows once the trainer stands."""
        self._hear(heard.Fenced(generation=generation, heard_step=heard_step))

    def drain(self, generation: int, *, save: bool, heard_step: int) -> None:
        """Leave this generation at the next step boundary that all ranks agree on."""
        self._hear(heard.AskedToLeave(generation=generation, save=save, heard_step=heard_step))

    def save_held(self, generation: int, step: int) -> None:
        """Write all that is held of the state at `step`, if the trainer is parked."""
        self._hear(heard.AskedToSave(generation=generation, step=step))

    def move(self, generation: int, vaults: VaultOrder) -> None:
        """Snapshots of this generation go to other vaults, as far as theirs are gone."""
        self._parts.snapshots.move(generation, vaults)

    def run(self) -> NoReturn:
        """Raises: whatever ends the worker, with nothing left of the mesh that it was in."""
        if self._parts.room:
            heard_thread(partial(lay_out, self._parts.room), name="room").start()
        try:
            while True:
                self._carry_out(self._duties.get())
        finally:
            self._hands.close()

    def _carry_out(self, duty: OwnDuty) -> None:
        if isinstance(duty, do.BuildMesh):
            self._hands.take(self._order(duty.generation))
        if word := self._hands.carry_out(duty):
            self._hear(word)

    def _order(self, generation: int) -> FormOrder:
        with self._deciding:
            order = self._orders[generation]
            self._orders = {g: o for g, o in self._orders.items() if g > generation}
        return order

    def _hear(self, word: heard.Heard) -> None:
        with self._deciding:
            over = 0
            for duty in self._seat.handle(word):
                match duty:
                    case do.TellIt(event=event):
                        self._parts.post(event)
                    case do.RaiseFence(generation=generation):
                        over = generation
                    case _:
                        self._duties.put(duty)
        if over:
            self._fence.up(over)
