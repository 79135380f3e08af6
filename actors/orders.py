"""What the controller hands to agents and workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.records import Member, PeerState, Restore, VaultSlot
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.job.curve import Fingerprint
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.job.kills import Kill
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.rung import Rung
from remesh.parallel.plan.cut import Held

NAMESPACE = "remesh"
HEAD = "node:__internal_head__"  # the resource by which Ray marks its head node


def controller_name(run: str) -> str:
    return f"remesh-{run}-controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One start of one run. `run` is unique to this start; names of actors carry it.

    `driver_lease_s` is how long the run goes on when its driver is gone, and `submission` names
    who may take it up meanwhile: nobody, if it is empty. `vault_token` opens the run's vaults.
    `notices` are sentences that are announced as it begins. On an `own_cluster`, one that was
    started for the run, nobody on another host has anything to ask. `fingerprint` is that of the
    run's first start, and `changes` is what shall hold from this one on.
    """

    run: str
    job: Job
    folder: str
    data_digest: str
    fingerprint: Fingerprint
    incarnation: int
    max_members: int
    kills: tuple[Kill, ...]
    driver_lease_s: float
    submission: str = ""
    vault_token: str = ""
    notices: tuple[str, ...] = ()
    own_cluster: bool = True
    changes: Amendments = ()

    @property
    def controller(self) -> str:
        return controller_name(self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultOrder:
    """Where a rank's snapshots go: addresses of vaults, empty where there is none.

    `own` is that of its node, `buddy` that of the node which keeps the copies.
    """

    own: str
    buddy: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOrder:
    """A snapshot that the state is restored from, and the address of its vault."""

    slot: VaultSlot
    address: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOrder:
    """One rank's part of a Form command: `rung` is the mesh.

    `held` is the part of the state at `from_step` that the worker holds, None for none of it.
    `ranks_to_fill` lack the part that their place asks for. `victim` is the rank that a node kill
    takes down. `amendments` say what each step trains with. `slots` are those of the
    `restore`. `vaults` is None if there are to be no snapshots.
    """

    generation: int
    rank: int
    store_host: str
    store_port: int
    store_secret: bytes = field(repr=False)
    form_timeout_s: float
    op_timeout_s: float
    rung: Rung
    restore: Restore
    held: Held | None
    ranks_to_fill: tuple[int, ...]
    from_step: int
    victim: int | None
    amendments: Amendments = ()
    slots: tuple[SlotOrder, ...] = ()
    vaults: VaultOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedForm:
    """What all ranks of a mesh are told alike: nothing in it grows with their number.

    `restore` names no slots: each rank is told those that it reads. `fills` says whether any rank
    lacks a part that its place asks for.
    """

    generation: int
    rung: Rung
    restore: Restore
    from_step: int
    fills: bool
    amendments: Amendments
    store_host: str
    store_port: int
    store_secret: bytes = field(repr=False)
    form_timeout_s: float
    op_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankForm:
    """What one rank is told beside it. `is_victim`: an ordered node kill takes this one down."""

    worker: str
    rank: int
    held: Held | None
    is_victim: bool
    slots: tuple[SlotOrder, ...]
    vaults: VaultOrder | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultMap:
    """The vaults of the run: their `addresses` by node, and whose copies go to whose.

    Without a `token` there are to be none.
    """

    addresses: Mapping[str, str]
    buddies: Mapping[str, str]
    token: str

    def order(self, node: str) -> VaultOrder | None:
        """That of the ranks on this node."""
        if not self.token:
            return None
        return VaultOrder(
            own=self.addresses.get(node, ""),
            buddy=self.addresses.get(self.buddies.get(node, ""), ""),
            token=self.token,
        )

    def slots(self, restore: Restore) -> tuple[SlotOrder, ...]:
        found = restore.slots if isinstance(restore, PeerState) else ()
        return tuple(
            SlotOrder(slot=slot, address=self.addresses.get(slot.vault, ""), token=self.token)
            for slot in found
        )


def form_order(
    form: Form,
    member: Member,
    store: tuple[str, int, bytes],
    *,
    timers: Timers,
    victim: int | None,
    vaults: VaultMap,
) -> FormOrder:
    """What this member has to know; `store` is (host, port, secret)."""
    return FormOrder(
        generation=form.generation,
        rank=member.rank,
        store_host=store[0],
        store_port=store[1],
        store_secret=store[2],
        form_timeout_s=timers.form_s,
        op_timeout_s=timers.restore_s,
        rung=form.rung,
        restore=form.restore,
        held=member.held if member.at_step == form.from_step else None,
        ranks_to_fill=tuple(m.rank for m in form.members if not _is_in_place(form, m)),
        from_step=form.from_step,
        victim=victim,
        amendments=form.amendments,
        slots=vaults.slots(form.restore),
        vaults=vaults.order(member.node),
    )


def _is_in_place(form: Form, member: Member) -> bool:
    """Whether the worker holds the part of the state that its place in the new mesh asks for."""
    own = form.rung.held_by(member.rank)
    return member.at_step == form.from_step and member.held == own
