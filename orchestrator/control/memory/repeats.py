"""Failures that come again in the same way: of one disk, of a copy of the state, or of the job."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFailure:
    """A worker failed by itself, in the step after the ones that were known."""

    step: int
    text: str
    node: str = ""


@dataclass(slots=True, kw_only=True)
class Repeats:
    """`erred` had their second try, on another node than theirs. `pending` is the first line of
    what a member of the present mesh raised; `last` is what was raised in the one before, and
    `went_back`: an older state was taken since, on account of it, or is about to be (`goes_back`).
    """

    erred: list[OwnFailure] = field(default_factory=list)
    pending: str = ""
    last: OwnFailure | None = None
    went_back: bool = False
    goes_back: bool = False

    def erred_elsewhere(self, failure: OwnFailure) -> OwnFailure | None:
        """The same failure on another node: at the same step, or in the same words."""
        for one in self.erred:
            same = one.step == failure.step or one.text == failure.text
            if same and one.node != failure.node:
                return one
        return None
