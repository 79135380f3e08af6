"""Every deadline follows from one knob, the patience: the layers are ordered by construction.

Separate settings for each layer lost: with an outer limit below an inner one the healthy process is
killed before recovery can act, and nobody sets eight numbers consistently.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Durations in seconds. `step_s` is the length of the newest finished step, None before one."""

    patience_s: float

    @property
    def silent_s(self) -> float:
        """A node or worker without a sign of life for this long is a suspect."""
        return self.patience_s

    @property
    def node_lost_s(self) -> float:
        return 3 * self.patience_s

    @property
    def end_s(self) -> float:
        """After EndWorker: the process counts as dead, whether or not its death was seen."""
        return 2 * self.patience_s

    @property
    def adopt_s(self) -> float:
        """A restarted controller and those that were there before find each other again."""
        return 10 * self.patience_s

    @property
    def form_s(self) -> float:
        return 10 * self.patience_s

    @property
    def lease_s(self) -> float:
        return 40 * self.patience_s

    @property
    def start_s(self) -> float:
        return 120 * self.patience_s

    @property
    def restore_s(self) -> float:
        return 240 * self.patience_s

    @property
    def save_s(self) -> float:
        """The last checkpoint of a run, which nothing else waits for."""
        return 240 * self.patience_s

    def fence_s(self, step_s: float | None) -> float:
        return 2 * self.patience_s + self._step_s(step_s)

    def drain_s(self, step_s: float | None) -> float:
        return 20 * self.patience_s + 2 * self._step_s(step_s)

    def stall_s(self, step_s: float | None) -> float:
        return 120 * self.patience_s + 10 * self._step_s(step_s)

    def gather_s(self, *, starting: bool) -> float:
        """How long a mesh that could be larger waits after a worker became ready."""
        return (40 if starting else 10) * self.patience_s

    def beat_s(self, num_nodes: int) -> float:
        """Interval of an agent's beats: the controller hears at most 1,000 a second."""
        return max(self.patience_s / 4, num_nodes / 1000)

    def _step_s(self, step_s: float | None) -> float:
        # A first step is slow and of unknown length: its worker must not be killed for that.
        return 10 * self.patience_s if step_s is None else step_s
