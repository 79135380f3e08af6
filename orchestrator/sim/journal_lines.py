"""The journal of one start of a simulated run, as it lies on a disk: sealed lines, a torn end."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from remesh.orchestrator.accounts import snapshot
from remesh.orchestrator.accounts.snapshot import Snapshot
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.events import Event
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.sealed_lines import sealed, unsealed


@dataclass(slots=True)
class JournalLines:
    """`total` is the sum of the last line; `torn` what a death amid a write has left of one."""

    lines: list[str] = field(default_factory=list)
    total: int = 0
    torn: str = ""

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.lines)) + len(self.lines)

    def append(self, event: Event, now_s: float) -> None:
        line, self.total = sealed(journal.encode(event, now_s), self.total)
        self.lines.append(line)

    def tear(self, chance: Random) -> None:
        """The last line was being written: some of it is there, and it was never acted upon."""
        line = self.lines.pop()
        self.torn = line[: chance.randint(0, len(line) - 1)]
        self.total = self._sums()

    def read(self) -> Iterator[str]:
        """What a reader finds: whole lines, then one that was cut short, if it was."""
        total = 0
        for line in self.lines:
            plain, total = unsealed(line, total)
            yield plain
        if self.torn:
            yield self.torn

    def replayed(self, options: Options, chance: Random) -> Controller:
        """The machine that wrote it: all events, or a snapshot at some line and those after it."""
        entries = list(journal.read(self.read()))
        snapshot_at = chance.randint(0, 2 * len(entries))
        controller = Controller(options)
        for number, (event, now_s) in enumerate(entries):
            if number == snapshot_at:
                controller = Controller(options, _through_json(controller))
            controller.handle(event, now_s)
        return controller

    def _sums(self) -> int:
        total = 0
        for line in self.lines:
            _, total = unsealed(line, total)
        return total


def _through_json(controller: Controller) -> State:
    values = snapshot.encode(Snapshot(state=controller.state, tally=Tally()))
    return snapshot.decode(json.loads(json.dumps(values))).state
