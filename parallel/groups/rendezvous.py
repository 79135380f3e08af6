"""Where the ranks of a new group meet, as a value."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where and as whom a rank forms a group. Two groups never share (store, generation, name).

    `secret` opens the store at `host` and `port`: it is of one generation, and shown to nobody.

    `form_timeout_s` bounds the forming, `op_timeout_s` each operation. Both are the last resort:
    the fence is what ends a generation. On a `cpu` the ranks talk by gloo, on a `cuda:N` by NCCL;
    if `strict`, by gloo with the manners of NCCL, as all ranks or none.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    generation: int
    rank: int
    size: int
    node_ip: str
    form_timeout_s: float
    op_timeout_s: float
    name: str = "world"
    device: str = "cpu"
    strict: bool = False
