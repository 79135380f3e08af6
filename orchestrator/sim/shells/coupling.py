"""A simulated mesh: what couples the processes of one generation through their collectives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.recovery import slots_of
from remesh.orchestrator.plan.buddies import buddies
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.parts import is_whole
from remesh.orchestrator.sim.shells.process import SimProcess, SimVote
from remesh.orchestrator.sim.shells.rank_snapshots import SimSnapshots
from remesh.orchestrator.sim.shells.world import World
from remesh.orchestrator.vault.rank_words import VaultWays
from remesh.orchestrator.worker.seat import Stance
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.step_result import NEVER

MOST_NAMED = 8  # as a real rank


@dataclass(slots=True, eq=False)
class SimMesh:
    """Forms when all members have come; a step ends when all have voted. `offers` has what they
    came with: the step, the part of its state, and its value.

    A dead member or one that left breaks the others' collectives after a short while, whoever of
    them waits; a frozen or unreachable one breaks nothing and lets everybody wait.
    """

    world: World
    form: Form
    processes: dict[str, SimProcess]
    reachable: Callable[[set[str]], bool]
    voted: Callable[[int, int], None]
    arrived: set[str] = field(default_factory=set)
    offers: dict[str, tuple[int | None, Held, int]] = field(default_factory=dict)
    sharing: set[str] = field(default_factory=set)
    at_boundary: set[str] = field(default_factory=set)
    vaults: dict[str, str] = field(default_factory=dict)
    buddies: dict[str, str] = field(default_factory=dict)
    voting: bool = False
    waiting: bool = False
    torn: bool = False
    store_lost: bool = False

    @property
    def generation(self) -> int:
        return self.form.generation

    @property
    def members(self) -> list[SimProcess]:
        """Members that were ever heard of; one whose process is gone stays here as a dead one."""
        return [self.processes[m.worker] for m in self.form.members]

    def part_of(self, process: SimProcess) -> Held:
        """Which part of the state belongs to the process' place."""
        return self.form.rung.held_by(process.rank)

    def value_at(self, step: int) -> int:
        """What the members came with at `step`: all parts of it, and of one and the same value."""
        for member in self.form.members:
            at_step, held, _ = self.offers[member.worker]
            if member.at_step == step and (at_step, held) != (step, member.held):
                raise InvariantError(f"{member} came with {held} at {at_step}")
        slots = slots_of(self.form.restore)
        named = [member.worker for member in self.form.members if member.at_step == step]
        came = [self.offers[name] for name in named]
        if not is_whole([held for _, held, _ in came] + [slot.held for slot in slots]):
            raise InvariantError(f"{self.form} starts from parts that are not all there")
        stored = [self.world.vaults[slot.vault].find(slot) for slot in slots]
        values = {value for _, _, value in came} | {slot.value for slot in stored if slot}
        if len(values) > 1:
            raise InvariantError(f"{self.form} starts from a mixture of states")
        return values.pop() if values else 0

    def snapshots_of(self, process: SimProcess) -> SimSnapshots | None:
        """A rank's snapshots in this generation, if the run has vaults."""
        if not self.world.settings.snapshot_every:
            return None
        held = self.part_of(process) if self._keeps(process) else None
        return SimSnapshots.begin(self.world, process, self.form, self.ways(process.node), held)

    def ways(self, node: str) -> VaultWays:
        """Where the snapshots of a node's ranks go, as far as the controller knew."""
        buddy = self.buddies.get(node, "")
        return VaultWays(own=self.vaults.get(node, ""), buddy=self.vaults.get(buddy, ""))

    def move(self, vaults: Mapping[str, str]) -> None:
        """The controller knows of other vaults."""
        self.vaults = dict(vaults)
        self.buddies = buddies({node: self.world.domains.get(node, "") for node in vaults})

    def fills(self) -> bool:
        """Whether some member lacks its part: then all take part in an exchange."""
        step = self.form.from_step
        return any(self.offers[m.name][:2] != (step, self.part_of(m)) for m in self.members)

    def share(self, process: SimProcess) -> None:
        """A collective: nobody has its part, or leaves, before all have come with theirs. Where one
        has left for all that, nobody gets anything.
        """
        if self.torn:
            self._break_soon(process)
            return
        self.sharing.add(process.name)
        if len(self.sharing) < len(self.form.members):
            return
        value = self.value_at(self.form.from_step)
        for member in self.members:
            member.exchange(self, value)

    def arrive(self, process: SimProcess) -> None:
        if self.store_lost:
            self._break_soon(process)
            return
        self.arrived.add(process.name)
        self.offers[process.name] = (process.at_step, process.held, process.value)
        timeout_s = self.world.settings.patience_s * self.world.between(1.0, 2.0)
        process.soon(timeout_s, lambda: self._form_timed_out(process))
        if len(self.arrived) < len(self.form.members):
            return
        if self.reachable({member.node for member in self.members}):
            for member in self.members:
                member.soon(self.world.between(0.002, 0.007), partial(member.formed, self.form))

    def lose_store(self) -> None:
        """The place where members find each other is gone; a mesh that stands does not need it."""
        self.store_lost = True
        for member in self.members:
            if member.in_mesh(self.generation) and member.stance is Stance.FORMING:
                self._break_soon(member)

    def ready(self, process: SimProcess) -> None:
        """A member stands at a step boundary and goes into the next step."""
        self.at_boundary.add(process.name)
        if self.torn:
            self._break_soon(process)
        elif len(self.at_boundary) == len(self.form.members):
            self.at_boundary.clear()
            self.voting = True
            step_s = self.world.settings.step_s * self.world.between(0.8, 1.3)
            self.world.agenda.after(step_s, lambda: self._vote(step_s))

    def left(self, process: SimProcess) -> None:
        """A member's groups are closed: the others' collectives fail soon after."""
        self.torn = True
        for member in self.members:
            if member is not process:
                self._break_soon(member)

    def died(self, process: SimProcess) -> None:
        """A death amid the vote lets it pass for some of the others and not for the rest."""
        if self.voting and not self.torn and self.world.chance.random() < 0.4:  # noqa: PLR2004 - a share of deaths
            self._pass([m for m in self.members if self.world.chance.random() < 0.5])  # noqa: PLR2004
        self.left(process)

    def resume(self) -> None:
        """Somebody thawed or came back: a vote that waited goes on."""
        if self.waiting:
            self.waiting = False
            self.world.agenda.after(0.001, lambda: self._vote(self.world.settings.step_s))

    def _break_soon(self, process: SimProcess) -> None:
        delay_s = self.world.between(0.01, 0.13)
        process.soon(delay_s, lambda: process.broken(self.generation, "a peer is gone"))

    def _form_timed_out(self, process: SimProcess) -> None:
        if process.in_mesh(self.generation) and process.stance is Stance.FORMING:
            process.broken(self.generation, "forming timed out", self._waited_for(process))

    def _waited_for(self, process: SimProcess) -> tuple[int, ...]:
        """Those that have not come; if all have, those that it does not reach."""
        missing = [m.rank for m in self.form.members if m.worker not in self.arrived]
        nodes = {m.rank: m.node for m in self.form.members if m.node != process.node}
        cut_off = [rank for rank, node in nodes.items() if not self.reachable({process.node, node})]
        return tuple((missing or cut_off)[:MOST_NAMED])

    def _vote(self, step_s: float) -> None:
        members = self.members
        if not self.voting or not all(m.in_mesh(self.generation) for m in members):
            return
        if any(m.frozen for m in members) or not self.reachable({m.node for m in members}):
            self.waiting = True
            return
        self.voted(self.generation, (members[0].at_step or 0) + 1)
        self._pass(members, step_s)

    def _pass(self, members: list[SimProcess], step_s: float | None = None) -> None:
        self.voting = False
        wishes = [m.wish for m in self.members if m.wish is not None]
        step = max(m.at_step or 0 for m in self.members) + 1
        stable, snapshot = self._ballots(step)
        vote = SimVote(
            leave=any(wish.leave for wish in wishes),
            save=any(wish.save for wish in wishes),
            snapshot=snapshot,
            stable=stable,
        )
        if members:
            self._promise(stable)
        for member in members:
            if member.in_mesh(self.generation) and member.stance is Stance.TRAINING:
                step = (member.at_step or 0) + 1
                seconds = step_s or self.world.settings.step_s
                member.act(partial(member.update, step, seconds, vote))

    def _ballots(self, step: int) -> tuple[int | None, bool]:
        """The least of what is safe for all, None without vaults; whether all can put this step."""
        found = [m.snapshots.ballot(step) for m in self.members if m.snapshots is not None]
        if len(found) < len(self.members):
            return None, False
        return min(safe for safe, _ in found), all(ready for _, ready in found)

    def _keeps(self, process: SimProcess) -> bool:
        """Whether this one puts the snapshots of a part that it holds."""
        return self.form.rung.is_first(process.rank)

    def _promise(self, stable: int | None) -> None:
        before = self.world.promised.get(self.generation, (-1, []))
        if stable is None or not before[0] < stable < NEVER:
            return
        places = []
        for member in self.members:
            if member.snapshots is None or not self._keeps(member):
                continue
            held = self.part_of(member)
            vaults = member.snapshots.used
            having = [v for v in vaults if v.holds(self.generation, stable, held)]
            if not having and all(vault.alive for vault in vaults):
                raise InvariantError(f"step {stable} is stable and {member.name} has not sealed it")
            places += [(vault, held) for vault in having]
        self.world.promised[self.generation] = (stable, places)
