"""Groups and the gradient tree against gloo's own all_reduce and torch's init_process_group.

The tree is what keeps the bits when ranks come and go; all_reduce shows what that costs. Ranks are
processes of one thread each on this machine, so more ranks than cores measure the machine too.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import torch
from rows import cost, report
from torch import distributed as dist

from remesh.parallel.collectives import all_reduce_
from remesh.parallel.fence import Fence
from remesh.parallel.group import Group, Rendezvous
from remesh.parallel.leaves import deal
from remesh.parallel.store import StoreServer
from remesh.parallel.tree import GradientTree

HOST = "127.0.0.1"
NUM_LEAVES = 12
Times = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller gradients")
    quick = parser.parse_args().quick
    rounds = 7 if quick else 31
    sizes_mb = (1, 4) if quick else (1, 4, 16)
    rows = [
        cost(
            f"sum {NUM_LEAVES} leaves of {mb} MB, {ranks} ranks",
            "gloo all_reduce",
            times,
            "ms",
        )
        for ranks in (2, 3, 4, 8)
        for mb, times in zip(sizes_mb, on_ranks(ranks, time_sums, sizes_mb, rounds), strict=True)
    ]
    rows += [
        cost(f"form, use and close, {ranks} ranks", "init_process_group", times, "ms")
        for ranks in (2, 4, 8)
        for times in on_ranks(ranks, time_forming, rounds)
    ]
    report("collectives", rows)


def on_ranks(size: int, function: Callable[..., list[Times]], *args: object) -> list[Times]:
    """What `function` returns on rank 0 of `size` fresh processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    server = StoreServer.open(HOST)
    answers = context.SimpleQueue()
    processes = [
        context.Process(target=work, args=(answers, rendezvous, function, args))
        for rendezvous in seats(server.port, size)
    ]
    for process in processes:
        process.start()
    times = answers.get()
    for process in processes:
        process.join()
    server.close()
    if times is None:
        raise SystemExit("a rank failed")
    return times


def seats(port: int, size: int) -> list[Rendezvous]:
    return [
        Rendezvous(
            host=HOST,
            port=port,
            generation=0,
            rank=rank,
            size=size,
            node_ip=HOST,
            form_timeout_s=60,
            op_timeout_s=60,
        )
        for rank in range(size)
    ]


def work(answers, rendezvous: Rendezvous, function: Callable[..., list[Times]], args) -> None:  # noqa: ANN001 - multiprocessing's own types
    torch.set_num_threads(1)
    times = None
    try:
        times = function(rendezvous, *args)
    finally:
        if rendezvous.rank == 0:
            answers.put(times)


def time_sums(rendezvous: Rendezvous, sizes_mb: Sequence[int], rounds: int) -> list[Times]:
    group = Group.form(rendezvous, Fence())
    times = [time_sum(group, mb << 18, rounds) for mb in sizes_mb]
    group.close()
    return times


def time_sum(group: Group, size: int, rounds: int) -> Times:
    """Leaf gradients, each in a buffer of its own, to one sum on all ranks, in milliseconds."""
    leaves = deal(NUM_LEAVES, group.size)[group.rank]
    gradients = [torch.randn(size) for _ in leaves]
    tree = GradientTree(NUM_LEAVES, size)
    buffers: list[torch.Tensor] = []

    def prepare() -> None:
        tree.clear()
        buffers[:] = [tree.take().add_(gradient) for gradient in gradients]

    def by_tree() -> None:
        for leaf, gradient in zip(leaves, buffers, strict=True):
            tree.add(leaf, gradient)
        tree.reduce(group)

    def by_all_reduce() -> None:
        total = gradients[0]
        for gradient in gradients[1:]:
            total.add_(gradient)
        all_reduce_(group, total)

    return in_turns(group, by_tree, by_all_reduce, rounds, prepare)


def time_forming(rendezvous: Rendezvous, rounds: int) -> list[Times]:
    """From nothing to the first sum and back to nothing, in milliseconds."""
    barrier = Group.form(rendezvous, Fence())
    generations = iter(range(1, 1000))
    [address] = share_store(barrier, rendezvous)

    def by_remesh() -> None:
        group = Group.form(replace(rendezvous, generation=next(generations)), Fence())
        all_reduce_(group, torch.ones(1))
        group.close()

    def by_torch() -> None:
        store = dist.PrefixStore(f"{next(generations)}", address)
        dist.init_process_group("gloo", store=store, rank=barrier.rank, world_size=barrier.size)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()

    times = in_turns(barrier, by_remesh, by_torch, rounds)
    barrier.close()
    return [times]


def share_store(group: Group, rendezvous: Rendezvous) -> list[dist.Store]:
    """torch's own store, in rank 0 and connected by all, ready before the clock starts."""
    port = torch.zeros(1, dtype=torch.int64)
    store = None
    if group.rank == 0:
        store = dist.TCPStore(HOST, 0, None, is_master=True, wait_for_workers=False)
        port[0] = store.port
    all_reduce_(group, port)
    timeout = timedelta(seconds=rendezvous.op_timeout_s)
    return [store or dist.TCPStore(HOST, int(port), None, is_master=False, timeout=timeout)]


def in_turns(
    group: Group,
    ours: Callable[[], None],
    theirs: Callable[[], None],
    rounds: int,
    prepare: Callable[[], None] = lambda: None,
) -> Times:
    """Median milliseconds of both, measured in turns after one round to warm up."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for run, taken in zip((ours, theirs), times, strict=True):
            prepare()
            all_reduce_(group, torch.ones(1))  # all ranks start together
            start = time.perf_counter()
            run()
            if number > 0:
                taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
