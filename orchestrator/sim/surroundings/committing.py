"""How the simulated controller's process puts manifests: late, in vain, for nobody, or never."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from remesh.orchestrator.control.words.commands import Commit
from remesh.orchestrator.control.words.events import CheckpointCommitted, CommitFailed, Event
from remesh.orchestrator.sim.checks.ends import FULL
from remesh.orchestrator.sim.shells.coupling import SimMesh
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.world import Saved, World, value_after
from remesh.orchestrator.sim.surroundings.outages import Outages

COMMIT_FAILS = 0.05
LAST_WORDS = 0.5


@dataclass(slots=True, eq=False)
class Committing:
    """`claim` is the number of the start whose controller it is; a newer one fences it off.

    Some are `refused` by chance, none of them twice. `writers` are the parked workers that were
    asked to write a checkpoint.
    """

    world: World
    outages: Outages
    meshes: Mapping[int, SimMesh]
    tell: Callable[[Event], None]
    claim: int
    refused: set[tuple[int, int]] = field(default_factory=set)
    writers: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)

    def put(self, commit: Commit) -> None:
        """The controller's own process puts the manifest."""
        members = self.meshes[commit.generation].form.members
        all_of_them = tuple(member.worker for member in members)
        for worker in self.writers.get((commit.generation, commit.step), all_of_them):
            if (commit.generation, commit.step, worker) not in self.world.written:
                raise InvariantError(f"{commit} lacks the file of {worker}")
        if self.world.storage.hangs:
            self.world.storage.hangs -= 1
            return
        quick_s, life = self.world.between(0.001, 0.02), self.outages.life
        put = partial(self._put, commit, life)
        self.world.storage.run(self.world.agenda.after, quick_s, put)

    def _put(self, commit: Commit, life: int) -> None:
        fenced = self.claim < self.world.storage.claim
        if self.outages.over(life):
            if not fenced and self.world.chance.random() < LAST_WORDS:
                self._manifest(commit)
            return
        if error := "another start has claimed the run" if fenced else self._error(commit):
            failed = CommitFailed(
                generation=commit.generation, step=commit.step, error=error, fenced=fenced
            )
            self.tell(failed)
            return
        name = self._manifest(commit)
        self.tell(CheckpointCommitted(generation=commit.generation, step=commit.step, name=name))

    def _error(self, commit: Commit) -> str:
        """Empty if it goes well."""
        if self.world.storage.is_full:
            return FULL
        key = (commit.generation, commit.step)
        if key in self.refused or self.world.chance.random() >= COMMIT_FAILS:
            return ""
        self.refused.add(key)
        return "connection reset"

    def _manifest(self, commit: Commit) -> str:
        name = f"step-{commit.step:08d}.gen-{commit.generation}.start-{self.claim}"
        value = 0
        for step in range(1, commit.step + 1):
            value = value_after(value, step)
        self.world.committed[name] = Saved(
            step=commit.step, value=value, generation=commit.generation
        )
        return name
