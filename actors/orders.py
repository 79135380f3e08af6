"""What the controller hands to agents and workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from remesh.orchestrator.control.words.records import Restore, VaultSlot
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.job.curve import Fingerprint
from remesh.orchestrator.job.faults_on_order import OrderedFault
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.rung import Rung

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
    run's first start, and `changes` is what shall hold from this one on. `start` is the claim of
    this start, `incarnation` that of its controller, which grows when another takes over.
    """

    run: str
    job: Job
    folder: str
    data_digest: str
    fingerprint: Fingerprint
    start: int
    incarnation: int
    max_members: int
    faults: tuple[OrderedFault, ...]
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
class SharedForm:
    """What all ranks of a mesh are told alike: nothing in it grows with their number.

    `restore` names no slots: each rank is told those that it reads. `fills` says whether any rank
    lacks a part that its place asks for. `amendments` say what each step trains with.
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
    """What one rank is told beside it.

    `slots` are those that this rank reads, for itself or for others too. `vaults` is None if there
    are to be no snapshots. `is_victim`: an ordered node kill takes this one down.
    """

    worker: str
    rank: int
    is_victim: bool = False
    slots: tuple[SlotOrder, ...] = ()
    vaults: VaultOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOrder:
    """One rank's part of a Form command, with what all are told: `rung` is the mesh.

    The fields are those of SharedForm and RankForm.
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
    from_step: int
    fills: bool
    is_victim: bool = False
    amendments: Amendments = ()
    slots: tuple[SlotOrder, ...] = ()
    vaults: VaultOrder | None = None


def joined(shared: SharedForm, rank: RankForm) -> FormOrder:
    """All that one rank has to know."""
    return FormOrder(
        generation=shared.generation,
        rank=rank.rank,
        store_host=shared.store_host,
        store_port=shared.store_port,
        store_secret=shared.store_secret,
        form_timeout_s=shared.form_timeout_s,
        op_timeout_s=shared.op_timeout_s,
        rung=shared.rung,
        restore=shared.restore,
        from_step=shared.from_step,
        fills=shared.fills,
        is_victim=rank.is_victim,
        amendments=shared.amendments,
        slots=rank.slots,
        vaults=rank.vaults,
    )


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

    def slot(self, slot: VaultSlot) -> SlotOrder:
        """How to read it."""
        return SlotOrder(slot=slot, address=self.addresses.get(slot.vault, ""), token=self.token)
