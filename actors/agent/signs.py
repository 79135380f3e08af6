"""Which processes of a node give no sign of life, and which make no progress.

Silence counts in time in which the agent itself ran. A process that waits for a processor, or has
one, is not frozen, however long it cannot beat: an oversubscribed host is no death. One that sleeps
wakes now and then to look around, and where processors are short it waits for one each time: so a
wait is a sign of work only where it goes on for most of the time. What lost: to count both alike,
by which nobody was at rest on a busy host.
"""

from collections.abc import Callable
from dataclasses import dataclass

from remesh.actors.agent.resident import Resident
from remesh.actors.node.processes import ProcessorUse, processor_use
from remesh.actors.node.stamps import Field
from remesh.orchestrator.control.words.events import Event, WorkerFrozen, WorkerStuck
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.worker.trainer_progress import Progress, Whereabouts
from remesh.parallel.plan.step_result import RankPhase

BUSY_PATIENCES = 10  # so long a process that is not stopped may wait for something that is no sign
RAN_PART = 50  # one that ran for one part in so many of a time was not idle in it
WAITED_PART = 2  # nor one that waited for a processor for so much of it


@dataclass(frozen=True, slots=True)
class Used:
    """What a process had used of processors at a moment of the agent's own time."""

    use: ProcessorUse
    at_s: float

    def is_idle_up_to(self, use: ProcessorUse, now_s: float) -> bool:
        ran_s, waited_s = use.since(self.use)
        passed_s = now_s - self.at_s
        return ran_s < passed_s / RAN_PART and waited_s < passed_s / WAITED_PART


@dataclass(slots=True)
class Signs:
    """The newest beat of a process, when it came, and the progress of its trainer.

    `silence` is what it had used when first looked at in the silence after it, `rest` the same in a
    step that overruns, with the running time `rest_s` of that look, and `rest_told` whether that it
    rests there is told.
    """

    progress: Progress
    beat_ns: int = 0
    beat_s: float = 0.0
    silence: Used | None = None
    rest: Used | None = None
    rest_s: float = 0.0
    rest_told: bool = False
    told: bool = False


class SignWatch:
    """For one thread, which looks several times a patience."""

    def __init__(
        self,
        timers: Timers,
        used_by: Callable[[int], ProcessorUse | None] = processor_use,
    ) -> None:
        """`used_by`: what the process with this pid has used so far, None where nobody tells."""
        self._timers = timers
        self._used_by = used_by
        self._signs: dict[int, Signs] = {}

    def look(self, owned: tuple[Resident, ...], now_s: float, running_s: float) -> list[Event]:
        """What is to be told of the node's workers; a vault that is frozen is killed.

        `now_s` is the agent's own time, `running_s` that of it in which processors were free.
        """
        there = [one for one in owned if one.is_there and one.stamps is not None]
        numbers = {one.number for one in there}
        self._signs = {number: s for number, s in self._signs.items() if number in numbers}
        news: list[Event] = []
        for one in there:
            news += self._look_at(one, now_s, running_s)
        return news

    def _look_at(self, one: Resident, now_s: float, running_s: float) -> list[Event]:
        signs = self._signs.get(one.number)
        if signs is None:
            signs = self._signs[one.number] = Signs(Progress(self._timers.patience_s))
        assert one.stamps is not None
        beat_ns = one.stamps[Field.BEAT_NS]
        if beat_ns != signs.beat_ns:
            signs.beat_ns, signs.beat_s, signs.told = beat_ns, now_s, False
            signs.silence = None
            return self._stuck(one, signs, now_s, running_s) if one.worker else []
        if signs.told or not self._is_frozen(one, signs, now_s):
            return []
        signs.told = True
        silent_s = now_s - signs.beat_s
        if one.worker:
            return [WorkerFrozen(worker=one.worker, silent_s=silent_s)]
        one.kill()
        return []

    def _is_frozen(self, one: Resident, signs: Signs, now_s: float) -> bool:
        silent_s = now_s - signs.beat_s
        if silent_s <= self._timers.stopped_s:
            return False
        process = one.process()
        if process is None:
            return False
        if silent_s <= self._timers.silent_s:
            return process.stopped_by_signal and _is_at_work(one)
        if process.stopped:
            return True
        late = silent_s > BUSY_PATIENCES * self._timers.silent_s
        if (signs.silence and not late) or (use := self._used_by(one.pid)) is None:
            return False
        if signs.silence is None:
            signs.silence = Used(use, now_s)
        return late and signs.silence.is_idle_up_to(use, now_s)

    def _stuck(self, one: Resident, signs: Signs, now_s: float, running_s: float) -> list[Event]:
        standing = _standing(one)
        silent_s = signs.progress.silent_s(standing, running_s, at_work=_is_at_work(one))
        at_rest = silent_s is None
        if at_rest:
            silent_s = self._rests_s(one, signs, now_s, running_s)
        if silent_s is None:
            return []
        return [
            WorkerStuck(
                worker=one.worker,
                generation=standing.generation,
                step=standing.step - 1,
                operation=standing.operation,
                phase=RankPhase(standing.phase).name.lower(),
                silent_s=silent_s,
                at_rest=at_rest,
            )
        ]

    def _rests_s(self, one: Resident, signs: Signs, now_s: float, running_s: float) -> float | None:
        """How long it stands still in a step that overruns, once it is seen to use no processor."""
        stood_s = signs.progress.overrun_s(running_s)
        if stood_s is None:
            signs.rest, signs.rest_told = None, False
            return None
        soon = signs.rest is not None and running_s - signs.rest_s < self._timers.patience_s
        if signs.rest_told or soon or (use := self._used_by(one.pid)) is None:
            return None
        if signs.rest is None:
            signs.rest, signs.rest_s = Used(use, now_s), running_s
            return None
        signs.rest_told = signs.rest.is_idle_up_to(use, now_s)
        signs.rest = None
        return stood_s if signs.rest_told else None


def _standing(one: Resident) -> Whereabouts:
    assert one.stamps is not None
    return Whereabouts(
        generation=one.stamps[Field.GENERATION],
        step=one.stamps[Field.STEP],
        operation=one.stamps[Field.OPERATION],
        phase=one.stamps[Field.PHASE],
    )


def _is_at_work(one: Resident) -> bool:
    """Whether it is a rank in the middle of a step of a mesh that has not ended."""
    standing = _standing(one)
    return standing.generation == one.generation > one.parked_in and standing.phase != RankPhase.AT
