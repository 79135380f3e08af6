"""How many failures a run may have before it gives up."""

from dataclasses import dataclass, field

EMPTY_TRIES = 3


@dataclass(slots=True, kw_only=True)
class Budget:
    """Failures since the run last made `healthy_steps` steps of progress.

    A failure is the loss of one or more members of a mesh before the next one forms, or a worker
    that did not start. Steps that were trained before and are trained again are no progress.
    Generations that broke before their first step although nobody was lost count as one failure
    for every three in a row. So do two nodes that were given up and had not died: a stall of a host
    is no death, and one that stalls each time must not go on for ever. `nodes` are those for whose
    loss a failure was counted.
    """

    failures: int = 0
    total: int = 0
    at_step: int = 0
    cause: str = ""
    empty_tries: int = 0
    false_alarms: int = 0
    nodes: dict[str, None] = field(default_factory=dict)

    def count(self, cause: str, step: int) -> None:
        self.failures += 1
        self.total += 1
        self.at_step = max(self.at_step, step)
        self.cause = cause

    def count_empty_try(self, cause: str, step: int) -> None:
        self.empty_tries += 1
        if self.empty_tries % EMPTY_TRIES == 0:
            self.count(f"{EMPTY_TRIES} generations in a row broke before a step: {cause}", step)

    def progress(self, step: int, healthy_steps: int) -> None:
        self.empty_tries = 0
        if step - self.at_step >= healthy_steps:
            self.failures = self.false_alarms = 0
            self.nodes.clear()

    def take_back(self, node: str) -> None:
        """A node for whose loss a failure was counted lives."""
        if node in self.nodes:
            del self.nodes[node]
            self.false_alarms += 1
            self.failures -= self.false_alarms % 2
