"""A Form command as what each node is told: what all ranks share once, and a line for each rank.

Nothing is walked through for each rank: a mesh of n ranks costs n steps and n lines.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from remesh.actors.agent.words import FormRanks
from remesh.actors.orders import RankForm, SharedForm, SlotOrder, VaultMap, VaultOrder
from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.records import Member, PeerState, VaultSlot
from remesh.orchestrator.control.words.recovery import slots_of
from remesh.orchestrator.job.timers import Timers
from remesh.parallel.plan.cut import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Where the ranks of one mesh meet."""

    host: str
    port: int
    secret: bytes = field(repr=False)


def forms_by_node(
    form: Form,
    store: StoreAddress,
    *,
    timers: Timers,
    vaults: VaultMap,
    head_nodes: Collection[str] = (),
) -> dict[str, FormRanks]:
    """What each node of the mesh is told.

    A node kill that was ordered takes down the highest rank that is not on one of `head_nodes`.
    """
    shared = shared_form(form, store, timers)
    victim = max((m.rank for m in form.members if m.node not in head_nodes), default=None)
    read = slot_readers(form)
    ranks: dict[str, list[RankForm]] = defaultdict(list)
    orders = {node: vaults.order(node) for node in {member.node for member in form.members}}
    for member in form.members:
        told = RankForm(
            worker=member.worker,
            rank=member.rank,
            is_victim=member.rank == victim,
            slots=_slots(vaults, read.get(member.rank, ())),
            vaults=orders[member.node],
        )
        ranks[member.node].append(told)
    return {node: FormRanks(shared=shared, ranks=tuple(told)) for node, told in ranks.items()}


def shared_form(form: Form, store: StoreAddress, timers: Timers) -> SharedForm:
    """What all ranks of this mesh are told alike."""
    restore = form.restore
    if isinstance(restore, PeerState):
        restore = replace(restore, slots=())
    return SharedForm(
        generation=form.generation,
        rung=form.rung,
        restore=restore,
        from_step=form.from_step,
        fills=any(lacking(form)),
        amendments=form.amendments,
        store_host=store.host,
        store_port=store.port,
        store_secret=store.secret,
        form_timeout_s=timers.form_s,
        op_timeout_s=timers.restore_s,
    )


def lacking(form: Form) -> Iterable[Member]:
    """The members that hold another part of the state than their place in the mesh asks for."""
    for member in form.members:
        in_time = member.at_step == form.from_step
        if not (in_time and member.held == form.rung.held_by(member.rank)):
            yield member


def slot_readers(form: Form) -> dict[int, tuple[VaultSlot, ...]]:
    """Which rank reads which slots out of the vaults: each is read once, by one rank.

    It is one whose place asks for just that part, on the node of the vault if there is one; else
    the ranks there take turns, else all of them do.
    """
    slots = slots_of(form.restore)
    if not slots:
        return {}
    readers = _Readers(form)
    found: dict[int, list[VaultSlot]] = defaultdict(list)
    for slot in slots:
        found[readers.of(slot)].append(slot)
    return {rank: tuple(read) for rank, read in found.items()}


class _Readers:
    """Ranks by what they lack and by their node."""

    def __init__(self, form: Form) -> None:
        self._wants: dict[tuple[Held, str], deque[int]] = defaultdict(deque)
        self._wants_anywhere: dict[Held, deque[int]] = defaultdict(deque)
        self._on: dict[str, list[int]] = defaultdict(list)
        self._all = [member.rank for member in form.members]
        self._turns: dict[str, int] = defaultdict(int)
        self._taken: set[int] = set()
        for member in lacking(form):
            wanted = form.rung.held_by(member.rank)
            self._wants[wanted, member.node].append(member.rank)
            self._wants_anywhere[wanted].append(member.rank)
        for member in form.members:
            self._on[member.node].append(member.rank)

    def of(self, slot: VaultSlot) -> int:
        for ranks in (self._wants[slot.held, slot.vault], self._wants_anywhere[slot.held]):
            while ranks:
                rank = ranks.popleft()
                if rank not in self._taken:
                    self._taken.add(rank)
                    return rank
        near = self._on.get(slot.vault)
        return self._in_turn(slot.vault, near) if near else self._in_turn("", self._all)

    def _in_turn(self, key: str, ranks: list[int]) -> int:
        self._turns[key] += 1
        return ranks[(self._turns[key] - 1) % len(ranks)]


def _slots(vaults: VaultMap, slots: Iterable[VaultSlot]) -> tuple[SlotOrder, ...]:
    return tuple(vaults.slot(slot) for slot in slots)


def moved_vaults(
    told: Mapping[str, VaultOrder | None], vaults: VaultMap, nodes: Iterable[str]
) -> dict[str, VaultOrder]:
    """The orders of those nodes whose vaults are others than they were told."""
    orders = {node: vaults.order(node) for node in nodes}
    return {node: order for node, order in orders.items() if order and order != told.get(node)}
