"""The losses of a run in a few points, however many steps it has."""

from dataclasses import dataclass, field

MOST_POINTS = 128


@dataclass(slots=True, kw_only=True)
class LossCurve:
    """Each point is the mean of `stride` steps; `sum` and `count` are of those after the last.

    A step whose loss is not finite makes its point NaN: it is never a mean over fewer.
    """

    points: list[float] = field(default_factory=list)
    stride: int = 1
    sum: float = 0.0
    count: int = 0

    def add(self, loss: float) -> None:
        self.sum += loss
        self.count += 1
        if self.count < self.stride:
            return
        self.points.append(self.sum / self.count)
        self.sum, self.count = 0.0, 0
        if len(self.points) == MOST_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(first + second) / 2 for first, second in pairs]
            self.stride *= 2

    @property
    def losses(self) -> tuple[float, ...]:
        """All points, the one that is not complete yet included."""
        return (*self.points, self.sum / self.count) if self.count else tuple(self.points)
