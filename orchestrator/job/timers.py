"""Every deadline follows from one knob, the patience: the layers are ordered by construction.

Separate settings for each layer lost: with an outer limit below an inner one the healthy process is
killed before recovery can act, and nobody sets eight numbers consistently.
"""

from dataclasses import dataclass

MOST_DOUBLINGS = 3  # of a start
MOST_PAUSES = 6  # doublings of a pause between two meshes


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Durations in seconds. `step_s` is the length of the newest finished step, None before one."""

    patience_s: float

    @property
    def silent_s(self) -> float:
        """A worker without a sign of life for this long is a suspect."""
        return self.patience_s

    @property
    def stopped_s(self) -> float:
        """So is one in the middle of a step after this long, if the kernel says that a signal has
        stopped it: all others wait for it. Its beat comes every fifth of a patience, and its agent
        looks as often, so it is known after a quarter of a second with the patience as it is.
        """
        return 0.3 * self.patience_s

    def beat_s(self, num_nodes: int) -> float:
        """Interval of an agent's beats: the controller hears at most 1,000 a second.

        `num_nodes` is what an agent was told last, here and below: by that it beats.
        """
        return max(self.patience_s / 4, num_nodes / 1000)

    def node_silent_s(self, num_nodes: int) -> float:
        """A node without a beat for this long is a suspect: one beat may be lost or late."""
        return max(self.patience_s, 2 * self.beat_s(num_nodes))

    def node_lost_s(self, num_nodes: int) -> float:
        return max(3 * self.patience_s, self.patience_s + 3 * self.beat_s(num_nodes))

    def node_lease_s(self, num_nodes: int) -> float:
        """What is left of a run on a node ends so long after the node was last answered."""
        return max(self.lease_s, 2 * self.node_lost_s(num_nodes))

    def adopt_s(self, num_nodes: int) -> float:
        """A restarted controller and those that were there before find each other again."""
        return max(10 * self.patience_s, self.node_lost_s(num_nodes))

    @property
    def end_s(self) -> float:
        """After EndWorker: the process counts as dead, whether or not its death was seen."""
        return 2 * self.patience_s

    @property
    def form_s(self) -> float:
        return 10 * self.patience_s

    @property
    def lease_s(self) -> float:
        return 40 * self.patience_s

    def start_s(self, late: int = 0) -> float:
        """A process that is late is started again with twice the time: its host is busy.

        `late` counts the starts in a row that were. The agent tells of one that dies or makes no
        progress, long before that.
        """
        return 120 * self.patience_s * 2.0 ** min(late, MOST_DOUBLINGS)

    def pause_s(self, empty_tries: int) -> float:
        """How long to wait before the next mesh, after so many in a row that made no step although
        nobody was lost. The first one may have met a moment's trouble: it is tried again at once.
        """
        if empty_tries < 2:  # noqa: PLR2004 - the first
            return 0.0
        return self.patience_s * 2.0 ** min(empty_tries - 2, MOST_PAUSES)

    @property
    def judge_s(self) -> float:
        """Those that make no progress tell of it at about the same time: within this long."""
        return 2 * self.patience_s

    @property
    def restore_s(self) -> float:
        return 240 * self.patience_s

    @property
    def read_s(self) -> float:
        """A checkpoint is read: until the next member has done so. Of one that hangs its agent
        tells long before that.
        """
        return 10 * self.restore_s

    @property
    def save_s(self) -> float:
        """A checkpoint that is waited for: until its next file comes in."""
        return 240 * self.patience_s

    @property
    def commit_s(self) -> float:
        """All files of a checkpoint are looked at, and its manifest is put."""
        return 2 * self.save_s

    def fence_s(self, step_s: float | None) -> float:
        return 2 * self.patience_s + self._step_s(step_s)

    def drain_s(self, step_s: float | None) -> float:
        return 20 * self.patience_s + 2 * self._step_s(step_s)

    def stall_s(self, step_s: float | None) -> float:
        return 120 * self.patience_s + 10 * self._step_s(step_s)

    def gather_s(self, *, starting: bool) -> float:
        """How long a mesh that could be larger waits after a worker became ready."""
        return (40 if starting else 10) * self.patience_s

    def _step_s(self, step_s: float | None) -> float:
        # A first step is slow and of unknown length: its worker must not be killed for that.
        return 10 * self.patience_s if step_s is None else step_s
