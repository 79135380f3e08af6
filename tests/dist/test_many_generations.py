"""After many generations a rank, its vault and its agent hold no more than after four."""

import gc
import os
import re
import signal
from pathlib import Path

from node_house import descriptors
from waiting import soon

MORE_DESCRIPTORS = 2
MORE_THREADS = 1
MORE_PRIVATE_KB = 1024
EARLY = 4  # generations
# What a fork shares with the warm process is in it from the start: a page of it that is written to
# for the first time is no more memory of the rank, though the kernel calls it private from then on.
OWN = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


def held(pid):
    """Descriptors, threads and private memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    return descriptors(pid), threads, int(OWN.search(status)[1])


def test_many_generations_leave_no_more_behind_than_four(make_control, request):
    house = make_control("long")
    survivor, _ = house.trains(2)
    rank, vault = house.household.rank(survivor), house.household.vault()
    found = []
    last = request.config.getoption("--generations")
    for number in range(1, last + 1):
        workers = house.trains(house.state.step + 2)
        if number in (EARLY, last):
            assert soon(lambda: everybody_is_ready(house))
            gc.collect()
            found.append([held(pid) for pid in (rank.pid, vault.pid)] + [held_here(house)])
        (victim,) = set(workers) - {survivor}
        generation = house.state.last_generation
        os.kill(house.household.rank(victim).pid, signal.SIGKILL)
        assert soon(lambda g=generation: house.state.last_generation > g)
    assert house.household.rank(survivor) is rank
    assert house.household.vault() is vault
    early, late = found
    for then, now in zip(early, late, strict=True):
        assert now[0] <= then[0] + MORE_DESCRIPTORS, found
        assert now[1] <= then[1] + MORE_THREADS, found
        assert now[2] <= then[2] + MORE_PRIVATE_KB, found


def everybody_is_ready(house):
    workers = list(house.state.roster.workers.values())
    return len(workers) == 3 and all(worker.state != "starting" for worker in workers)


def held_here(house):
    """Of the agent, which is this process, what does not depend on what else it has tested."""
    warm = house.household._forker.warm_pid
    return descriptors(os.getpid()) + descriptors(warm), *held(warm)[1:]
