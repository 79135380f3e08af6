"""Elements and bytes of working weights, and of gradients that are added up.

Source: Rajbhandari et al. 2019 (arXiv:1910.02054), section 3, here with the tree's nodes.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, islice, pairwise

from remesh.parallel.plan.leaves import push
from remesh.parallel.plan.memory.rank_sizes import MASTER_BYTES, BucketRun, RankSizes
from remesh.parallel.plan.node_deals import deal_evenly
from remesh.parallel.plan.pieces import Pieces

_FREED_FROM = 3  # the ZeRO stage from which on no rank keeps all working weights
_MOST_LEAVES = 4096  # that are looked at one by one


def working_elements(sizes: RankSizes) -> int:
    """Of weights that are not the master weights themselves."""
    full = [(run.pieces.shard_size * run.pieces.num_shards, run.num) for run in sizes.buckets]
    if sizes.shards == 1 and sizes.compute_bytes == MASTER_BYTES:
        return 0
    if sizes.stage < _FREED_FROM or sizes.keep_gathered:
        return sum(size * num for size, num in full)
    # One block is there while the next one comes: buckets take turns in two rooms. Of two passes
    # side by side each has a block of its own.
    most = 4 if sizes.paired else 2
    rooms = sorted((size for size, num in full for _ in range(min(num, most))), reverse=True)[:most]
    return sum(rooms) + (full[0][0] if sizes.model.tied and sizes.has_head else 0)


def gradient_bytes(sizes: RankSizes) -> int:
    runs = list(sizes.buckets)
    if sizes.model.tied and sizes.has_head and sizes.has_embedding:
        # The head adds to the embedding's bucket, apart.
        runs.append(BucketRun(pieces=runs[0].pieces))
    largest = _largest(runs)
    sums = _streamed_elements if sizes.streams else _summed_elements
    found = sizes.gradient_bytes * sums(sizes, runs)
    if sizes.compute_bytes != sizes.gradient_bytes:
        found += sizes.compute_bytes * largest.padded_size
    if sizes.gradient_bytes != MASTER_BYTES:
        found += MASTER_BYTES * largest.shard_size
    return found


def _summed_elements(sizes: RankSizes, runs: Sequence[BucketRun]) -> int:
    """A rank adds its own leaves, then all exchange what they have.

    Ranks that share experts have one leaf each of every run of leaves, and so no two siblings; of
    the experts each adds up the gradients of whole runs.
    """
    if not sizes.same_bits:
        return _padded(runs)
    together = max(1, sizes.ep // sizes.cp)
    found, exchanged = 0, 0
    for of_experts in {run.of_experts for run in runs}:
        own = [run for run in runs if run.of_experts == of_experts]
        padded, largest = _padded(own), _largest(own)
        kept = _nodes_kept(sizes, together, by_runs=of_experts)
        if sizes.microbatches_per_leaf > 1:
            found += padded * (max([0, *kept[:-1]]) + 1)
        else:
            found += padded * max(kept) + (_rooms(own) if _joins_at_most(kept) else 0)
        members = sizes.dp * sizes.cp // (sizes.ep if of_experts else 1)
        exchanged = max(exchanged, _exchanged_elements(sizes, members, kept[-1], largest))
    return found + 2 * exchanged


def _joins_at_most(kept: Sequence[int]) -> bool:
    """Whether a leaf joins a node when there are as many as there ever are: then it is one more."""
    most = max(kept)
    return any(before == most >= after for before, after in pairwise(kept))


def _rooms(runs: Sequence[BucketRun], at_once: int = 1) -> int:
    """Of so many buckets of each size: a buffer that is free again serves those of its size."""
    counts: dict[int, int] = defaultdict(int)
    for run in runs:
        counts[run.pieces.padded_size] += run.num
    return sum(size * min(at_once, count) for size, count in counts.items())


def _padded(runs: Sequence[BucketRun]) -> int:
    return sum(run.pieces.padded_size * run.num for run in runs)


def _largest(runs: Sequence[BucketRun]) -> Pieces:
    return max((run.pieces for run in runs), key=lambda pieces: pieces.padded_size)


def _exchanged_elements(sizes: RankSizes, members: int, own: int, largest: Pieces) -> int:
    """Of one bucket under way: the pieces that arrive, and those that have to be packed first.

    A rank has `own` nodes of the tree.
    """
    if sizes.one_host or members == 1 or (sizes.shards == 1 and members == 2 and own == 1):  # noqa: PLR2004
        return 0
    packed = 0 if own == 1 and largest.in_order else own * largest.padded_size
    return members * own * largest.piece_size + packed


def _streamed_elements(sizes: RankSizes, runs: Sequence[BucketRun]) -> int:
    """Every leaf is exchanged as soon as it is there; two buckets are under way at a time."""
    padded, largest = _padded(runs), _largest(runs)
    if not sizes.same_bits:
        owned = sum(run.num * run.pieces.shard_size for run in sizes.buckets)
        under_way = 2 * (largest.padded_size + largest.shard_size)
        return owned + (padded if sizes.microbatches_per_leaf > 1 else 0) + under_way
    rounds = range(1, min(-(-sizes.num_leaves // sizes.dp), _MOST_LEAVES) + 1)
    firsts = [min(n * sizes.dp, sizes.num_leaves) for n in rounds[:-1] or [1]]
    depth = max(map(sizes.tree.num_nodes, firsts))
    pieces = sum(run.num * run.pieces.piece_size for run in sizes.buckets) * depth * sizes.cp
    whole = padded if sizes.microbatches_per_leaf > 1 else 0
    copies = 2 if largest.in_order else 3  # as it came, as it is sent, and what arrives
    return pieces + whole + copies * _rooms(runs, at_once=2)


def _nodes_kept(sizes: RankSizes, together: int, *, by_runs: bool) -> list[int]:
    """Of a rank that ends with the most: nodes of the tree after each of its leaves.

    It has one of each run of `together` leaves, or with `by_runs` adds up whole runs.
    """
    runs = sizes.tree.by_runs(together)
    tree, step = (runs, 1) if by_runs else (sizes.tree, together)
    most: tuple[range, ...] = ()
    for nodes in deal_evenly(runs, sizes.dp // together):
        most = nodes if len(nodes) > len(most) else most
    stack: list[tuple[range, None]] = []
    found = []
    for run in islice(chain(*most), _MOST_LEAVES):
        leaf = run * step
        push(stack, (range(leaf, leaf + 1), None), lambda *_: None, tree)
        found.append(len(stack))
    return found
