"""At which steps the ranks put snapshots into vaults: all of them at the same.

A step can be restored only where every part of it was kept. So what decides is what all ranks know
alike: the step, and the stable step that its vote told. What lost: each rank skips a snapshot when
it has no slot free itself. Then one rank may have steps 10 and 12 and another 10 and 11; both give
up 10 for the sake of a minimum, 11, that nobody can restore.
"""

from dataclasses import dataclass, field

NUM_SLOTS = 3  # a rank and generation: the stable step, the newest sealed one, one being written


@dataclass(slots=True, kw_only=True)
class Cadence:
    """The steps of one generation after which to put a snapshot, every `every`-th at best.

    `beyond` are those that are not known to be stable yet; one slot is left for the stable step.
    """

    every: int
    beyond: list[int] = field(default_factory=list)

    def is_due(self, step: int, stable_step: int | None) -> bool:
        """Whether to put one after `step`, whose vote told the newest stable step, None for none.

        It is asked once for each step, in order.
        """
        if stable_step is not None:
            self.beyond = [before for before in self.beyond if before > stable_step]
        if step % self.every or len(self.beyond) >= NUM_SLOTS - 1:
            return False
        self.beyond.append(step)
        return True
