"""What goes wrong in parallel/, as types: callers above turn them into events or exit codes."""


class LayoutError(ValueError):
    """Degrees that do not fit the ranks or the model. The message holds both numbers and a cure."""


class ScheduleError(ValueError):
    """A list of operations that cannot be a step: something is missing, doubled or too early."""


class GroupError(RuntimeError):
    """A group could not be formed, or a collective on it failed. It does not say by whose fault.

    `waited_for` are ranks that it waited for in vain, as far as that is known.
    """

    def __init__(self, text: str, waited_for: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.waited_for = waited_for


class Cancelled(Exception):  # noqa: N818 - nothing failed: somebody asked for it
    """The fence of this generation is up: leave it, write nothing more."""


class CheckpointError(Exception):
    """A checkpoint is missing, incomplete or corrupt. The message names the file and a cure."""


class OtherFormatError(CheckpointError):
    """A checkpoint that another version has written. The message names both formats and a cure."""


class SlotError(Exception):
    """A snapshot in memory cannot be read, or is another than it says. `slot` is its name."""

    def __init__(self, slot: str, text: str) -> None:
        super().__init__(f"{slot} cannot be used: {text}")
        self.slot = slot
