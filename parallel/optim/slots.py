"""What optimizers remember of each parameter: pure, for all that has to know it without updating.

Each optimizer declares its slots. Memory, checkpoints and other people's formats follow from them,
so that a new optimizer is one file here. In a file the tensors of a slot are named after it and
after the parameter; the parameters themselves have no such first name.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """A tensor of each parameter's shape, beside it. Without a dtype it has the master weights'."""

    name: str
    dtype: str | None = None

    def tensor(self, parameter: str) -> str:
        """The name of this parameter's tensor."""
        return f"{self.name}.{parameter}"


ADAMW_SLOTS = (SlotSpec(name="exp_avg"), SlotSpec(name="exp_avg_sq"))

_KNOWN = frozenset(slot.name for slot in ADAMW_SLOTS)


def slot_and_parameter(tensor: str) -> tuple[str, str]:
    """After what a tensor of a state is named; the slot is empty for a parameter itself."""
    slot, _, parameter = tensor.partition(".")
    return (slot, parameter) if slot in _KNOWN else ("", tensor)
