"""Which processes of a node give no sign of life, and which make no progress.

Silence counts in time in which the agent itself ran. A process that waits for a processor, or has
one, is not frozen, however long it cannot beat: an oversubscribed host is no death.
"""

from dataclasses import dataclass
from pathlib import Path

from remesh.actors.agent.resident import Resident
from remesh.actors.node.stamps import Field
from remesh.orchestrator.control.words.events import Event, WorkerFrozen, WorkerStuck
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.worker.trainer_progress import Progress, Whereabouts
from remesh.parallel.plan.step_result import RankPhase

BUSY_PATIENCES = 10  # so long a process that is not stopped may wait for something that is no sign
RAN_PART = 50  # one that ran or waited to run for one part in so many of a silence is no dead one


@dataclass(slots=True)
class Signs:
    """The newest beat of a process, when it came, and the progress of its trainer.

    `active_ns` is how long it had run or waited to run at `active_s`, in the silence after it;
    `rest_ns` and `rest_s` are the same in a step that overruns, and `rest_told` whether that it
    rests there is told.
    """

    progress: Progress
    beat_ns: int = 0
    beat_s: float = 0.0
    active_ns: int | None = None
    active_s: float = 0.0
    rest_ns: int | None = None
    rest_s: float = 0.0
    rest_told: bool = False
    told: bool = False


class SignWatch:
    """For one thread, which looks several times a patience."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
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
            signs.active_ns = None
            return self._stuck(one, signs, running_s) if one.worker else []
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
        if signs.active_ns is None:
            signs.active_ns, signs.active_s = active_ns(one.pid), now_s
        if silent_s <= BUSY_PATIENCES * self._timers.silent_s:
            return False
        ran_s = (active_ns(one.pid) - signs.active_ns) / 1e9
        return ran_s < (now_s - signs.active_s) / RAN_PART

    def _stuck(self, one: Resident, signs: Signs, running_s: float) -> list[Event]:
        standing = _standing(one)
        silent_s = signs.progress.silent_s(standing, running_s, at_work=_is_at_work(one))
        at_rest = silent_s is None
        if at_rest:
            silent_s = self._rests_s(one, signs, running_s)
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

    def _rests_s(self, one: Resident, signs: Signs, running_s: float) -> float | None:
        """How long it stands still in a step that overruns, once it is seen to use no processor."""
        stood_s = signs.progress.overrun_s(running_s)
        if stood_s is None:
            signs.rest_ns, signs.rest_told = None, False
            return None
        if signs.rest_told:
            return None
        if signs.rest_ns is None:
            signs.rest_ns, signs.rest_s = active_ns(one.pid), running_s
        passed_s = running_s - signs.rest_s
        if passed_s < self._timers.patience_s:
            return None
        ran_s = (active_ns(one.pid) - signs.rest_ns) / 1e9
        signs.rest_ns = None
        signs.rest_told = ran_s < passed_s / RAN_PART
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


def active_ns(pid: int) -> int:
    """How long the threads of a process have run, or waited for a processor; 0 if nobody tells."""
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            ran, waited, _ = (task / "schedstat").read_text().split()
            total += int(ran) + int(waited)
    except (OSError, ValueError):  # a thread has just ended, or the kernel does not count
        return total
    return total
