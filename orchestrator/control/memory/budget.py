"""How many failures a run may have before it gives up."""

from dataclasses import dataclass

EMPTY_TRIES = 3


@dataclass(slots=True, kw_only=True)
class Budget:
    """Failures since the run last made `healthy_steps` steps of progress.

    A failure is the loss of one or more members of a mesh before the next one forms, or a worker
    that did not start. Steps that were trained before and are trained again are no progress.
    Generations that broke before their first step although nobody was lost count as one failure
    for every three in a row.
    """

    failures: int = 0
    total: int = 0
    at_step: int = 0
    cause: str = ""
    empty_tries: int = 0

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
            self.failures = 0
