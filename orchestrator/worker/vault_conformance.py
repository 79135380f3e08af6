"""Whether the vaults of a real run have told what the machines of their ranks may have left there.

The journal has what all ranks voted, step by step: of which steps they took snapshots, and which
were stable. That alone decides into which of its slots a rank writes. So the machine of a rank is
played with the votes, and a vault that is asked may tell of what is in those slots then: of all
that was stable, and of what is newer as far as it was sealed by then. It tells of its own ranks in
the order of their slots, and of those of others whose copies it keeps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.events import (
    StepsDone,
    VaultLost,
    VaultTold,
    WorkerParked,
)
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.records import StepRecord, VaultSlot
from remesh.orchestrator.vault import vault_words as vw
from remesh.orchestrator.vault.rank_slots import NOTHING, RankSlots
from remesh.orchestrator.vault.rank_words import VaultWays
from remesh.orchestrator.vault.shelf import NUM_SLOTS
from remesh.orchestrator.vault.snapshot_pace import Pace
from remesh.orchestrator.worker.conformance import ConformanceError, PlacedEvent
from remesh.parallel.plan.cut import Held


@dataclass(slots=True, kw_only=True)
class _VotedMesh:
    """A generation, with the votes of its steps; the nodes `without` lost a vault meanwhile."""

    form: Form
    records: dict[int, StepRecord] = field(default_factory=dict)
    without: set[str] = field(default_factory=set)

    def part_of(self, held: Held) -> str | None:
        """The node of a rank that holds it, None if nobody does."""
        rung = self.form.rung
        nodes = [one.node for one in self.form.members if rung.held_by(one.rank) == held]
        return nodes[0] if nodes else None


def check_vaults(options: Options, lines: Iterable[PlacedEvent]) -> int:
    """How many slots vaults have told of, each of which may be there.

    Raises: ConformanceError at the first that may not, or at one that has to be there and is not.
    """
    lines = list(lines)
    meshes = _meshes(options, lines)
    told = 0
    for place, event, _ in lines:
        if isinstance(event, VaultTold):
            why = next(_faults(event, meshes), "")
            if why:
                raise ConformanceError(f"line {place.line}: the vault of {event.node} {why}")
            told += len(event.slots)
    return told


def _faults(told: VaultTold, meshes: dict[int, _VotedMesh]) -> Iterator[str]:
    by_part: dict[tuple[int, Held], list[VaultSlot]] = {}
    for slot in told.slots:
        if slot.vault != told.node:
            yield f"tells of that of {slot.vault}"
        by_part.setdefault((slot.generation, slot.held), []).append(slot)
    for (generation, held), slots in by_part.items():
        mesh = meshes.get(generation)
        if mesh is None or generation > told.generation or mesh.part_of(held) is None:
            yield f"tells of {held} of generation {generation}, of which there is no rank"
        else:
            steps = [slot.step for slot in slots]
            yield from _faults_of(told, mesh, steps, is_own=mesh.part_of(held) == told.node)
    mesh = meshes.get(told.generation)
    if mesh is not None and _played(mesh).stable > NOTHING and told.node not in mesh.without:
        for member in mesh.form.members:
            held = mesh.form.rung.held_by(member.rank)
            if member.node == told.node and (told.generation, held) not in by_part:
                yield f"tells of nothing of {held}, which was stable"


def _faults_of(
    told: VaultTold, mesh: _VotedMesh, steps: list[int], *, is_own: bool
) -> Iterator[str]:
    """What is wrong with the slots of one part. After a newer mesh those may have gone."""
    rank = _played(mesh)
    there = [slot.step for slot in rank.slots if slot.step > NOTHING]
    in_order = [step for step in there if step in steps]
    if not set(steps) <= set(there):
        yield f"tells of steps {steps}, and {there} are there"
    elif (in_order if is_own else sorted(in_order)) != (steps if is_own else sorted(steps)):
        yield f"tells of steps {steps} in another order than {there}"
    present = told.generation == mesh.form.generation and told.node not in mesh.without
    if present and rank.stable in there and rank.stable not in steps:
        yield f"does not tell of step {rank.stable}, which was stable"


def _played(mesh: _VotedMesh) -> RankSlots:
    """The slots of a rank after all votes of this generation; each snapshot is safe at once."""
    rank = RankSlots(Pace(1))
    claim = vw.LeaseSlots(
        generation=mesh.form.generation,
        held=Held(),
        size_bytes=0,
        from_step=mesh.form.from_step,
        buddy="",
    )
    rank.enter(VaultWays(own="own", buddy="buddy"), claim, mesh.form.from_step, 0.0)
    rank.heard(vw.SlotsLeased(paths=("",) * NUM_SLOTS))
    for _ in range(NUM_SLOTS):
        rank.mapped()
    for step in sorted(mesh.records):
        did = mesh.records[step].did
        if did.stable_step is not None:
            rank.voted(did.stable_step)
        number = rank.free_slot()
        if did.snapshot and number is not None:
            rank.copied(number, step, 0.0, 0.0)
            rank.heard(vw.SlotSealed(slot=number, step=step))
            rank.heard(vw.SlotSafe(slot=number, step=step))
    return rank


def _meshes(options: Options, lines: Iterable[PlacedEvent]) -> dict[int, _VotedMesh]:
    """By generation, as the controller has formed them, with all that the journal has of them."""
    controller, meshes = Controller(options), dict[int, _VotedMesh]()
    for _, event, now_s in lines:
        if isinstance(event, StepsDone | WorkerParked) and event.generation in meshes:
            records = {record.step: record for record in event.records}
            meshes[event.generation].records |= records
        if isinstance(event, VaultLost) and meshes:
            meshes[max(meshes)].without.add(event.node)
        for command in controller.handle(event, now_s):
            if isinstance(command, Form):
                meshes[command.generation] = _VotedMesh(form=command)
    return meshes
