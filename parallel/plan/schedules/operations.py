"""The operations of a step.

One engine interprets every schedule and knows none by name, so that a new schedule is a new list.
Microbatches are numbered through the whole global batch; leaf l consists of the microbatches
[l * g, (l + 1) * g), and the backward of the last one completes it. Stages of the model are
numbered from the front; a rank may have several, and several ranks may have the same.
"""

from dataclasses import dataclass
from typing import Literal

Pass = Literal["forward", "backward", "input", "weight"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Compute a microbatch through a stage; the last one gives its loss.

    `version` is that of the weights, 0 where there is only one of them.
    """

    microbatch: int
    stage: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """Add a microbatch's gradients to those of its leaf; the last one sends the leaf on its way.

    `version` is that of its forward.
    """

    microbatch: int
    leaf: int
    ends_leaf: bool
    stage: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBackward:
    """The gradient of a stage's input alone. What its weights need is kept for `WeightBackward`."""

    microbatch: int
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBackward:
    """The rest of a backward: the gradients of every parameter, added to those of the leaf."""

    microbatch: int
    leaf: int
    ends_leaf: bool
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCompany:
    """Do nothing but take part in the collectives of what others compute here.

    `what` names their operation. It sends nothing and receives nothing; `number` is that of the
    slot in which this replica has no microbatch.
    """

    what: Pass
    number: int
    stage: int = 0
    ends_leaf: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A forward and the backward of another microbatch at once, block beside block.

    While one of them waits for what experts on other ranks are sent, or say, the other one
    computes. Neither needs what the other makes.
    Source: DeepSeek-AI 2024 (arXiv:2412.19437), section 3.2.1.
    """

    forward: Forward | KeepCompany
    backward: Backward | KeepCompany


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderMessage:
    """What crosses from a stage to the next one, or the gradient of it on its way back.

    `border` is the number of the stage before it.
    """

    what: Literal["activation", "gradient"]
    border: int
    microbatch: int

    def __str__(self) -> str:
        return f"the {self.what} of microbatch {self.microbatch} at the end of stage {self.border}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Give a message to a rank. Whether it waits until it is received is not said: it may.

    Peers are positions in the pipeline of the rank's own replica.
    """

    peer: int
    message: BorderMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """Wait for a message of a rank. Messages of one rank to another come in the order sent."""

    peer: int
    message: BorderMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Give a message to a rank and wait for one of the same rank, both at once."""

    peer: int
    send: BorderMessage
    receive: BorderMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Finish the sums over the leaves of all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Agree with all ranks on loss, token count, whether all is finite, and what comes next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stash:
    """Keep a version of the weights, for backwards that are still to come, when a newer is made."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Update the parameters: make `version`, which is 0 where there is only one of them."""

    version: int = 0


MicrobatchPass = Forward | Backward | InputBackward | WeightBackward | KeepCompany | Overlap
LocalOperation = Forward | Backward | KeepCompany | Overlap | Reduce | Vote | Step
Split = InputBackward | WeightBackward
Transfer = Send | Receive | Exchange
Operation = LocalOperation | Split | Stash | Transfer
