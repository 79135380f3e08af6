"""A simulated node: what has become of it, and what is wrong with it."""

from dataclasses import dataclass, field

HEAD = "node-0"


@dataclass(slots=True, eq=False)
class Host:
    """`cut_off` hosts live on, unheard, and so do those whose agent is `stalled`, though its ranks
    reach the others; `draining` ones go once they are let go.

    `address` is that of the node whose place it has taken, if it has. On a host with a `bad_disk`
    every trainer errs. `deals_twice`: the next worker is given a device that another one has.
    `devices` are those of its processes; to start one takes `start_times` as long as elsewhere.
    """

    name: str
    slots: int
    address: str
    domain: str = ""
    alive: bool = True
    cut_off: bool = False
    stalled: bool = False
    draining: bool = False
    bad_disk: bool = False
    deals_twice: bool = False
    devices: dict[str, int] = field(default_factory=dict)
    start_times: float = 1.0

    @property
    def is_heard(self) -> bool:
        return self.alive and not self.cut_off and not self.stalled
