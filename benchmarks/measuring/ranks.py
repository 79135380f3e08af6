"""Fresh processes of one thread each as the ranks of a group, and fair turns between contestants.

Ranks are processes on this machine: more of them than cores measure the machine too.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed as dist

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.group import Group
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.groups.store import StoreServer

HOST = "127.0.0.1"
T = TypeVar("T")


def on_ranks(size: int, function: Callable[..., T], *args: object) -> T:
    """What `function` returns on rank 0 of `size` fresh processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    server = StoreServer.open(HOST)
    answers = context.SimpleQueue()
    processes = [
        context.Process(target=work, args=(answers, rendezvous, function, args))
        for rendezvous in seats(server, size)
    ]
    for process in processes:
        process.start()
    answer = answers.get()
    for process in processes:
        process.join()
    server.close()
    if answer is None:
        raise SystemExit("a rank failed")
    return answer


def seats(server: StoreServer, size: int) -> list[Rendezvous]:
    return [
        Rendezvous(
            host=HOST,
            port=server.port,
            secret=server.secret,
            generation=0,
            rank=rank,
            size=size,
            node_ip=HOST,
            form_timeout_s=60,
            op_timeout_s=60,
        )
        for rank in range(size)
    ]


def work(answers, rendezvous: Rendezvous, function: Callable[..., T], args) -> None:  # noqa: ANN001 - multiprocessing's own types
    torch.set_num_threads(1)
    answer = None
    try:
        answer = function(rendezvous, *args)
    finally:
        if rendezvous.rank == 0:
            answers.put(answer)


def share_store(group: Group, timeout_s: float) -> dist.Store:
    """torch's own store, in rank 0 and connected by all, ready before the clock starts."""
    port = torch.zeros(1, dtype=torch.int64)
    store = None
    if group.rank == 0:
        store = dist.TCPStore(HOST, 0, None, is_master=True, wait_for_workers=False)
        port[0] = store.port
    all_reduce_(group, port)
    timeout = timedelta(seconds=timeout_s)
    return store or dist.TCPStore(HOST, int(port), None, is_master=False, timeout=timeout)


def in_turns(
    group: Group,
    contestants: Sequence[Callable[[], None]],
    rounds: int,
    prepare: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median milliseconds of each by this clock, in turns after one round to warm up."""
    times: list[list[float]] = [[] for _ in contestants]
    for number in range(rounds + 1):
        for run, taken in zip(contestants, times, strict=True):
            prepare()
            all_reduce_(group, torch.ones(1))  # all ranks start together
            start = clock()
            run()
            if number > 0:
                taken.append(1e3 * (clock() - start))
    return [statistics.median(taken) for taken in times]
