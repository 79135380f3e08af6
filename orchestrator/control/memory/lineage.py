"""Which steps of which generation the run stands on."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Lineage:
    """The chain of (generation, from_step) that no later generation has abandoned.

    A generation that starts from step s abandons every later step of its forerunners, and those
    forerunners wholly that began beyond s.
    """

    chain: list[tuple[int, int]] = field(default_factory=list)

    def begin(self, generation: int, from_step: int) -> None:
        assert not self.chain or generation > self.chain[-1][0]
        while self.chain and self.chain[-1][1] > from_step:
            self.chain.pop()
        self.chain.append((generation, from_step))

    def holds(self, generation: int, step: int) -> bool:
        """Whether the state at `step` of `generation` is one that the run stands on."""
        end = None
        for older, from_step in reversed(self.chain):
            if older == generation:
                return from_step <= step and (end is None or step <= end)
            if older < generation:
                return False
            end = from_step
        return False

    def keeper(self, step: int) -> int:
        """The newest generation that holds the state at `step`, which is one of the lineage."""
        return next(older for older, from_step in reversed(self.chain) if from_step <= step)

    def owner(self, step: int) -> int | None:
        """The generation that trained `step`, None if no generation of the chain did."""
        for generation, from_step in reversed(self.chain):
            if from_step < step:
                return generation
        return None
