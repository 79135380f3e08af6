"""What gives a death, a frozen process, a stuck trainer or a standstill away, and what does not."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from waiting import soon

from remesh.actors.agent.death_causes import OUT_OF_MEMORY, OomKills, cause_of
from remesh.actors.agent.free_time import LEAST_PART, FreeTime
from remesh.actors.agent.places import Places
from remesh.actors.agent.resident import Resident
from remesh.actors.agent.signs import BUSY_PATIENCES, RAN_PART, WAITED_PART, SignWatch
from remesh.actors.node.link import link
from remesh.actors.node.own_time import LATE, OwnTime
from remesh.actors.node.processes import ProcessorUse, look, processor_use
from remesh.actors.node.seats import RankSeat, VaultSeat
from remesh.actors.node.stamps import Field
from remesh.orchestrator.control.words.events import WorkerFrozen, WorkerStuck
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.worker.trainer_progress import (
    FIRST_PATIENCES,
    LEAST_PATIENCES,
    LONGEST_GAPS,
    OVERRUN_PATIENCES,
    Progress,
    Whereabouts,
)
from remesh.parallel.plan.step_result import RankPhase

P = 2.0


def at(step=1, operation=0, phase=RankPhase.COMPUTING, generation=1):
    return Whereabouts(generation=generation, step=step, operation=operation, phase=phase)


def trained(gap_s, count=3):
    """A rank that has gone from one operation to the next in this time, at its newest one."""
    progress = Progress(P)
    for operation in range(count):
        assert progress.silent_s(at(operation=operation), operation * gap_s, at_work=True) is None
    return progress, at(operation=count - 1), (count - 1) * gap_s


@pytest.mark.parametrize(("gap_s", "doublings"), [(0.1, 0), (P, 0), (1.1 * P, 1), (30 * P, 5)])
def test_ten_times_the_longest_gap_is_too_long(gap_s, doublings):
    progress, here, now_s = trained(gap_s)
    limit_s = LEAST_PATIENCES * P * 2**doublings
    assert limit_s >= LONGEST_GAPS * gap_s
    assert progress.silent_s(here, now_s + 0.99 * limit_s, at_work=True) is None
    assert progress.silent_s(here, now_s + 1.01 * limit_s, at_work=True) == 1.01 * limit_s
    assert progress.silent_s(here, now_s + 2 * limit_s, at_work=True) is None  # told once


def test_a_first_operation_may_take_long():
    progress = Progress(P)
    progress.silent_s(at(phase=RankPhase.AT), 0.0, at_work=False)
    progress.silent_s(at(), 0.0, at_work=True)
    assert progress.silent_s(at(), 0.99 * FIRST_PATIENCES * P, at_work=True) is None
    assert progress.silent_s(at(), 1.01 * FIRST_PATIENCES * P, at_work=True) is not None


def test_what_the_generation_before_has_left_in_the_stamps_is_not_judged():
    """While it restores, for minutes perhaps, it stands where it was fenced."""
    progress, here, now_s = trained(0.1)
    progress.silent_s(at(operation=here.operation, generation=2), now_s, at_work=True)
    later_s = now_s + 10 * FIRST_PATIENCES * P
    stale = at(operation=here.operation, generation=2)
    assert progress.silent_s(stale, later_s, at_work=True) is None


def test_a_phase_is_judged_by_its_own_gaps_and_a_generation_by_its_own():
    progress, _, now_s = trained(0.1)
    assert progress.limit_s(RankPhase.COMPUTING) < progress.limit_s(RankPhase.UPDATING)
    progress.silent_s(at(generation=2), now_s, at_work=True)
    assert progress.limit_s(RankPhase.COMPUTING) == FIRST_PATIENCES * P


def test_who_is_not_in_a_step_has_all_the_time():
    progress, here, now_s = trained(0.1)
    assert progress.silent_s(here, now_s + 1e6, at_work=False) is None
    assert progress.silent_s(here, now_s + 1e6 + P, at_work=True) is None


def stepped(step_s=2.0, steps=5, gaps=4):
    """A rank that has made steps of so many operations, at the begin of its next one."""
    progress = Progress(P)
    for number in range(steps * gaps):
        here = at(step=number // gaps, operation=number % gaps)
        progress.silent_s(here, number * step_s / gaps, at_work=True)
    progress.silent_s(at(step=steps), steps * step_s, at_work=True)
    return progress, at(step=steps), steps * step_s


def overruns(progress, here, now_s):
    progress.silent_s(here, now_s, at_work=True)
    return progress.overrun_s(now_s)


def test_a_step_that_takes_three_times_as_long_as_usual_is_looked_at():
    least_s = OVERRUN_PATIENCES * P
    progress, here, now_s = stepped()
    assert overruns(progress, here, now_s + 0.99 * least_s) is None
    assert overruns(progress, here, now_s + 1.01 * least_s) == pytest.approx(1.01 * least_s)
    progress, here, now_s = stepped(step_s=10 * P, gaps=20)
    assert overruns(progress, here, now_s + 29 * P) is None
    assert overruns(progress, here, now_s + 31 * P) == 31 * P


def test_one_that_stands_at_one_place_for_long_is_looked_at_later():
    progress, here, now_s = stepped(step_s=5 * P, gaps=2)
    other = at(step=here.step, operation=1)
    progress.silent_s(other, now_s + 6 * P, at_work=True)
    progress.silent_s(here := at(step=here.step, operation=2), now_s + 12 * P, at_work=True)
    assert overruns(progress, here, now_s + 29 * P) is None
    assert overruns(progress, here, now_s + 31 * P) == 19 * P


def test_before_steps_are_known_none_takes_too_long():
    progress, here, now_s = stepped(steps=2)
    assert overruns(progress, here, now_s + 100 * P) is None
    progress, here, now_s = stepped(steps=3)
    assert overruns(progress, here, now_s + 100 * P) is not None
    anew = at(step=here.step, generation=2)
    assert overruns(progress, anew, now_s + 101 * P) is None
    assert (
        overruns(progress, at(step=here.step, operation=1, generation=2), now_s + 102 * P) is None
    )
    anew = at(step=here.step, operation=2, generation=2)
    assert overruns(progress, anew, now_s + 103 * P) is None
    assert overruns(progress, anew, now_s + 1000 * P) is None


@dataclass
class Seen(dict):
    """Stamps that a test writes."""

    words: dict = field(default_factory=dict)

    def __getitem__(self, name):
        return self.words.get(name, 0)


class Looked:
    """A process of the node, and its agent's look at it."""

    def __init__(self, seat):
        self.process = subprocess.Popen(["sleep", "1000"])
        self.line, self.theirs = link()
        self.one = Resident(1, seat, self.line)
        self.one.born(self.process.pid, os.pidfd_open(self.process.pid))
        self.one.stamps = Seen()
        self.used_s = {"ran": 0.001, "waited": 0.0}
        self.counts = True
        self.watch = SignWatch(Timers(patience_s=P), self.use)
        self.beats = 0

    def beat(self, now_s, **standing):
        self.beats += 1
        self.one.stamps.words |= {Field.BEAT_NS: self.beats}
        self.one.stamps.words |= {Field[name.upper()]: value for name, value in standing.items()}
        return self.look(now_s)

    def look(self, now_s):
        return self.watch.look((self.one,), now_s, now_s)

    def use(self, pid):
        assert pid == self.process.pid
        ran_ns, waited_ns = (int(used_s * 1e9) for used_s in self.used_s.values())
        return ProcessorUse({pid: (ran_ns, waited_ns)}) if self.counts else None

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        assert soon(lambda: look(self.process.pid).stopped)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.one.close()
        self.theirs.close()


@pytest.fixture
def looked():
    seat = RankSeat(worker="worker-0", node="n", node_ip="", device=None, incarnation=1)
    looked = Looked(seat)
    yield looked
    looked.close()


def test_a_stopped_process_is_frozen_after_a_patience_and_told_once(looked):
    looked.beat(0.0)
    looked.stop()
    assert looked.look(0.9 * P) == []
    assert looked.look(1.1 * P) == [WorkerFrozen(worker="worker-0", silent_s=1.1 * P)]
    assert looked.look(1.2 * P) == []
    assert looked.beat(2.0 * P) == []
    assert len(looked.look(3.1 * P)) == 1


def test_one_that_all_others_wait_for_is_frozen_after_a_third_of_a_patience(looked):
    looked.one.generation = 3
    looked.beat(0.0, generation=3, step=5, phase=int(RankPhase.COMPUTING))
    looked.stop()
    assert looked.look(0.25 * P) == []
    assert looked.look(0.35 * P) == [WorkerFrozen(worker="worker-0", silent_s=0.35 * P)]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_so_soon_only_one_that_is_stopped_in_the_middle_of_a_step_is(looked, is_stopped):
    looked.one.generation = 3
    phase = RankPhase.AT if is_stopped else RankPhase.COMPUTING
    looked.beat(0.0, generation=3, step=5, phase=int(phase))
    if is_stopped:
        looked.stop()
    assert looked.look(0.9 * P) == []


def test_a_process_that_sleeps_without_a_beat_is_frozen_late(looked):
    looked.beat(0.0)
    assert looked.look(1.1 * P) == []
    assert len(looked.look(1.1 * BUSY_PATIENCES * P)) == 1


ALL_OF_IT_S = BUSY_PATIENCES * P


@pytest.mark.parametrize(
    ("ran", "waited", "idle"),
    [
        (1.1 / RAN_PART, 0.0, False),
        (0.9 / RAN_PART, 0.9 / WAITED_PART, True),
        (0.0, 1.1 / WAITED_PART, False),
    ],
)
def test_a_process_that_runs_or_waits_to_run_is_not_frozen(looked, ran, waited, idle):
    """Hunger: without a beat, but with processor time, or in the queue for it most of the time."""
    looked.beat(0.0)
    assert looked.look(1.1 * P) == []
    looked.used_s["ran"] += ran * ALL_OF_IT_S
    looked.used_s["waited"] += waited * ALL_OF_IT_S
    assert len(looked.look(1.1 * P + ALL_OF_IT_S)) == idle


def test_where_the_kernel_does_not_count_a_process_that_sleeps_is_not_known_to(looked):
    looked.counts = False
    looked.beat(0.0)
    assert looked.look(1.1 * P) == looked.look(1.2 * P + ALL_OF_IT_S) == []
    now_s = in_a_long_step(looked)
    assert looked.beat(now_s + 1.1 * P) == looked.beat(now_s + 2.2 * P) == []


def test_a_frozen_vault_is_killed():
    looked = Looked(VaultSeat(node="n", node_ip="", incarnation=1))
    try:
        looked.beat(0.0)
        looked.stop()
        assert looked.look(1.1 * P) == []
        assert looked.process.wait() == -signal.SIGKILL
    finally:
        looked.close()


def test_a_trainer_that_stands_still_while_its_process_beats_is_stuck(looked):
    looked.one.generation = 3
    step = {"generation": 3, "step": 5, "phase": int(RankPhase.COMPUTING)}
    for operation in range(3):
        assert looked.beat(0.1 * operation, operation=operation, **step) == []
    (told,) = looked.beat(1.1 * LEAST_PATIENCES * P)
    assert isinstance(told, WorkerStuck)
    assert (told.worker, told.generation, told.step) == ("worker-0", 3, 4)
    assert (told.operation, told.phase) == (2, "computing")


def in_a_long_step(looked):
    """A rank that has made steps, and stands in one that overruns; the moment."""
    looked.one.generation = 3
    for number in range(5):
        for operation in range(2):
            where = {"generation": 3, "step": number, "phase": int(RankPhase.COMPUTING)}
            assert looked.beat(number + operation / 2, operation=operation, **where) == []
    now_s = 5.0 + OVERRUN_PATIENCES * P
    assert looked.beat(now_s) == []
    return now_s


def test_a_trainer_in_a_long_step_whose_process_sleeps_is_told_early_and_again_late(looked):
    now_s = in_a_long_step(looked)
    assert looked.beat(now_s + 0.9 * P) == []
    (told,) = looked.beat(now_s + 1.1 * P)
    assert (told.worker, told.step, told.operation, told.at_rest) == ("worker-0", 3, 1, True)
    assert looked.beat(now_s + 2.0 * P) == looked.beat(now_s + 3.2 * P) == []
    (late,) = looked.beat(now_s + 1.1 * LEAST_PATIENCES * P)
    assert not late.at_rest


@pytest.mark.parametrize(("word", "part"), [("ran", RAN_PART), ("waited", WAITED_PART)])
def test_a_trainer_that_computes_is_not_told_early(looked, word, part):
    now_s = in_a_long_step(looked)
    looked.used_s[word] += 1.2 * P / part
    assert looked.beat(now_s + 1.1 * P) == []
    looked.beat(now_s + 1.2 * P)
    (told,) = looked.beat(now_s + 2.4 * P)
    assert told.at_rest, "it is looked at again"


def test_a_sleeper_on_a_busy_host_is_told_early(looked):
    """It wakes a hundred times a second, and waits for a processor each time."""
    now_s = in_a_long_step(looked)
    looked.used_s["waited"] += 0.9 * P / WAITED_PART
    (told,) = looked.beat(now_s + 1.1 * P)
    assert told.at_rest


def test_what_a_process_uses_is_told_by_thread_and_what_has_ended_takes_nothing_along():
    earlier = ProcessorUse({1: (2_000_000_000, 0), 2: (9_000_000_000, 9_000_000_000)})
    later = ProcessorUse({1: (3_000_000_000, 500_000_000), 3: (1_000_000_000, 250_000_000)})
    assert later.since(earlier) == (2.0, 0.75)
    another = ProcessorUse({1: (3_000_000_000, 500_000_000), 2: (1_000_000_000, 250_000_000)})
    assert another.since(earlier) == (2.0, 0.75)


def test_what_a_process_uses_is_the_kernels_word():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        assert soon(lambda: processor_use(process.pid))
        first = processor_use(process.pid)
        assert soon(lambda: processor_use(process.pid).since(first)[0] > 0)
        process.kill()
    assert processor_use(process.pid) is None


@pytest.mark.parametrize("reason", ["parked", "between steps", "not formed"])
def test_a_trainer_that_has_nothing_to_do_is_not_stuck(looked, reason):
    looked.one.generation = 2 if reason == "not formed" else 3
    looked.one.parked_in = 3 if reason == "parked" else 0
    phase = RankPhase.AT if reason == "between steps" else RankPhase.COMPUTING
    for operation in range(3):
        looked.beat(0.1 * operation, generation=3, step=5, phase=int(phase), operation=operation)
    assert looked.beat(2 * FIRST_PATIENCES * P) == []


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_a_standstill_is_no_time_and_is_told_once():
    clock = Clock()
    own = OwnTime(1.0, clock)
    for _ in range(5):
        clock.now_s += LATE
        own.now_s()
    assert own.now_s() == 5 * LATE
    assert own.stood_still_s() == 0.0
    clock.now_s += 1000.0
    assert own.now_s() == 5 * LATE + 1.0
    assert own.stood_still_s() == 999.0
    assert own.stood_still_s() == 0.0


def test_time_passes_slowly_where_processors_are_short_but_it_passes():
    starved = Clock()
    free = FreeTime(starved)
    assert free.at(10.0) == 10.0
    starved.now_s += 6.0
    assert free.at(20.0) == 14.0
    starved.now_s += 20.0
    assert free.at(40.0) == 14.0 + 20.0 / LEAST_PART


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (None, "its process ended"),
        (0, "its process ended with exit code 0"),
        (3, "its process ended with exit code 3"),
        (-signal.SIGKILL, "its process died of SIGKILL"),
        (-signal.SIGBUS, "its process died of SIGBUS"),
        (-99, "its process died of signal 99"),
    ],
)
def test_a_cause_is_what_the_kernel_says(code, cause):
    assert cause_of(code, out_of_memory=False) == cause
    assert (cause_of(code, out_of_memory=True) == OUT_OF_MEMORY) == (code == -signal.SIGKILL)


@pytest.mark.parametrize("where", ["/proc/vmstat", "/sys/fs/cgroup/pod/memory.events"])
def test_a_kill_for_memory_is_known_by_the_counters_of_the_kernel(where):
    counts = {"/proc/vmstat": 3, "/sys/fs/cgroup/pod/memory.events": 0}

    def read(path):
        text = {str(name): f"low 0\noom_kill {count}\n" for name, count in counts.items()}
        return {"/proc/self/cgroup": "0::/pod\n", **text}.get(str(path), "")

    kills = OomKills(read)
    assert not kills.is_new(10.0)
    counts[where] += 1
    assert kills.is_new(20.0)
    assert kills.is_new(20.5)  # several at once
    assert not kills.is_new(22.0)


def test_a_place_is_dealt_again_only_when_it_is_free():
    places = Places((4, 6))
    assert [places.deal(name) for name in ("a", "b", "c")] == [True, True, False]
    assert (places.device("a"), places.device("b")) == (4, 6)
    places.free("a")
    assert places.deal("c")
    assert places.device("c") == 4


def test_without_devices_there_is_always_a_place():
    places = Places(())
    assert all(places.deal(f"worker-{number}") for number in range(20))
    assert places.device("worker-3") is None
