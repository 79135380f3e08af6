"""Published schedules as lists: each valid, idle and in flight as its paper says."""

import math
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
from counted import calls_made, growth
from hypothesis import example, given
from hypothesis import strategies as st

from remesh.parallel.plan.dealing import deal_in_rounds, deal_in_runs
from remesh.parallel.plan.errors import LayoutError, ScheduleError
from remesh.parallel.plan.leaves import LeafTree
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import (
    PUBLISHED,
    asynchronous_schedules_of,
    legal_schedule,
    most_in_flight,
    pipeline_of,
    schedules_of,
)
from remesh.parallel.plan.schedules.checks.check import check_asynchronous, check_schedules
from remesh.parallel.plan.schedules.checks.company import check_company, visits
from remesh.parallel.plan.schedules.checks.kept import freed_after, peak_in_flight, peak_versions
from remesh.parallel.plan.schedules.dualpipe_v import dualpipe_v
from remesh.parallel.plan.schedules.interleaved import interleaved
from remesh.parallel.plan.schedules.operations import (
    Backward,
    BorderMessage,
    Exchange,
    Forward,
    KeepCompany,
    Receive,
    Reduce,
    Send,
    Step,
    Vote,
)
from remesh.parallel.plan.schedules.rank_lists import operations_of
from remesh.parallel.plan.schedules.rank_order import Task, one_by_one
from remesh.parallel.plan.schedules.replica_slots import Slot, slots_alone, slots_of
from remesh.parallel.plan.schedules.timing.timeline import PassCosts, time_line
from remesh.parallel.plan.schedules.wiring import made_by, needed_by, wire

NAMES = st.sampled_from(sorted(PUBLISHED))
RANKS, MICROBATCHES, CHUNKS = st.integers(1, 8), st.integers(1, 16), st.integers(2, 4)
HALF = Fraction(1, 2)
UNIT = PassCosts(forward=1, input=HALF, weight=HALF)
EVEN = PassCosts(forward=1, input=1, weight=1)
END = (Reduce(), Vote(), Step())


@cache
def legal(name, ranks, num_microbatches, chunks=2):
    """The nearest to it that is legal: pipeline, slots and lists."""
    if name == "interleaved":
        num_microbatches = -(-num_microbatches // ranks) * ranks
    if name == "dualpipe-v":
        num_microbatches = max(num_microbatches, 2 * ranks)
    pipeline, slots = pipeline_of(name, ranks, chunks), slots_alone(num_microbatches)
    return pipeline, slots, schedules_of(name, pipeline, slots)


def idle(name, ranks, num_microbatches, costs, chunks=2):
    """The same for each rank, in a list of as many as there are different ones."""
    line = time_line(legal(name, ranks, num_microbatches, chunks)[2], costs)
    return sorted({line.idle(rank) for rank in range(ranks)})


@given(NAMES, RANKS, MICROBATCHES, CHUNKS)
def test_every_schedule_is_a_step_and_keeps_what_it_says_at_the_most(name, ranks, count, chunks):
    pipeline, slots, lists = legal(name, ranks, count, chunks)
    most = [most_in_flight(name, pipeline, rank, len(slots)) for rank in range(ranks)]
    check_schedules(lists, pipeline, slots, most)
    assert list(map(peak_in_flight, lists)) == most


@given(st.sampled_from(["gpipe", "1f1b"]), RANKS, MICROBATCHES)
def test_gpipe_and_1f1b_idle_for_their_share(name, ranks, count):
    share = Fraction(ranks - 1, count + ranks - 1)
    for costs in (UNIT, EVEN, PassCosts(forward=3, input=4, weight=2)):
        assert time_line(legal(name, ranks, count)[2], costs).bubble == share


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_four_stages_idle_for_six_units_each_in_eight_microbatches(name):
    assert idle(name, 4, 8, UNIT) == [6]


def test_a_flush_after_every_eight_microbatches_costs_27_percent_and_none_16():
    [first, second] = (legal("1f1b", 4, 8)[2],) * 2
    flushed = time_line([[*one, *other] for one, other in zip(first, second, strict=True)], UNIT)
    assert flushed.bubble == Fraction(3, 11)
    for name in ("2bw", "pipedream"):
        unflushed = asynchronous_schedules_of(name, Pipeline(ranks=4), 16, 4)
        assert time_line(unflushed, UNIT).bubble == Fraction(3, 19)


@given(st.integers(2, 8), st.integers(1, 2), CHUNKS)
def test_interleaving_divides_the_bubble_by_the_stages_of_a_rank(ranks, rounds, chunks):
    """Passes through a v-th of the layers take a v-th of the time."""
    plain = idle("1f1b", ranks, rounds * ranks, EVEN)
    part = Fraction(1, chunks)
    costs = PassCosts(forward=part, input=part, weight=part)
    assert idle("interleaved", ranks, rounds * ranks, costs, chunks) == [plain[0] / chunks]


TIMES = st.integers(2, 9)


@given(RANKS, MICROBATCHES, TIMES, TIMES)
def test_zb_h1_idles_as_published(ranks, count, longer, weight):
    """Where a weights' half takes no longer than the other passes, as the paper has it."""
    costs = PassCosts(forward=weight + longer, input=weight + longer, weight=weight)
    expected = (ranks - 1) * (costs.forward + costs.input - costs.weight)
    if count >= ranks:
        assert idle("zb-h1", ranks, count, costs) == [expected]
    assert idle("zb-h1", ranks, count, costs) <= idle("1f1b", ranks, count, costs)


def test_zb_h1_idles_a_third_of_1f1b_on_even_costs():
    assert idle("zb-h1", 4, 8, EVEN) == [3]
    assert idle("1f1b", 4, 8, EVEN) == [9]


@given(st.integers(2, 6), st.integers(0, 6), st.integers(1, 5), st.integers(1, 5))
def test_dualpipe_v_idles_as_published_with_passes_side_by_side(ranks, more, longer, weight):
    """(p - 1)(F&B + B - 3 W), where a forward beside a backward takes as long as both."""
    forward = weight + longer - 1
    costs = PassCosts(forward=forward, input=forward, weight=weight)
    expected = (ranks - 1) * (forward + 2 * costs.backward - 3 * weight)
    assert side_by_side(ranks, 2 * ranks + more, costs) == [expected]


@given(st.integers(2, 6), st.integers(0, 6), st.integers(1, 5), st.integers(1, 5))
def test_dualpipe_v_idles_less_with_one_pass_after_the_other(ranks, more, longer, weight):
    """As here, since a forward's message need not wait for the backward beside it."""
    forward = weight + longer - 1
    costs = PassCosts(forward=forward, input=forward, weight=weight)
    expected = (ranks - 1) * (costs.forward + costs.input - costs.weight)
    assert idle("dualpipe-v", ranks, 2 * ranks + more, costs) == [expected]


def side_by_side(ranks, num_microbatches, costs):
    """How long ranks idle if in the middle two passes begin and end together."""
    pipeline = pipeline_of("dualpipe-v", ranks)
    blocks = [
        paired(dualpipe_v(pipeline, rank, num_microbatches), apart=int(rank == ranks - 1))
        for rank in range(ranks)
    ]
    busy = {sum(cost_of(task, costs) for block in own for task in block) for own in blocks}
    length = length_of(blocks, pipeline, costs)
    return sorted(length - one for one in busy)


def cost_of(task, costs):
    return getattr(costs, task.what)


def length_of(blocks, pipeline, costs):
    """Until all ranks are through: a block begins once all is there that it needs."""
    blocks, free, there = [list(own) for own in blocks], [0] * len(blocks), {None: 0}
    while any(blocks):
        for rank, own in enumerate(blocks):
            wanted = {needed_by(task, pipeline) for task in own[0]} if own else {"a block"}
            if wanted <= there.keys():
                block = own.pop(0)
                start = max([free[rank], *(there[one] for one in wanted)])
                free[rank] = start + sum(cost_of(task, costs) for task in block)
                there |= {made_by(task, pipeline): free[rank] for task in block} | {None: 0}
    return max(free)


def paired(order, apart):
    """A forward and the backward after it as one block, but for so many of the first."""
    blocks = []
    for task in order:
        if task.what == "backward" and len(blocks[-1]) == 1 and blocks[-1][0].what == "forward":
            apart -= 1
            if apart < 0:
                blocks[-1].append(task)
                continue
        blocks.append([task])
    return blocks


LONGER = st.integers(6, 20)


@given(NAMES, st.integers(2, 5), st.integers(1, 3), st.integers(6, 12), LONGER, st.integers(6, 12))
@example("interleaved", 4, 4, 8, 14, 11)
@example("interleaved", 4, 3, 1, 6, 2)
def test_messages_make_nobody_wait_beyond_what_they_are_made_of(
    name, ranks, rounds, forward, halved, weight
):
    """A list takes as long as the passes of its ranks would that get all messages at once."""
    costs = PassCosts(forward=forward, input=halved, weight=weight)
    pipeline, slots, lists = legal(name, ranks, rounds * ranks)
    orders = [PUBLISHED[name].order(pipeline, rank, len(slots)) for rank in range(ranks)]
    blocks = [[(task,) for task in order] for order in orders]
    assert time_line(lists, costs).length == length_of(blocks, pipeline, costs)


def test_a_rank_in_the_middle_gives_before_it_takes():
    """So one that is late makes nobody late but those that wait for it."""
    transfers = [type(one) for one in legal("gpipe", 3, 4)[2][1] if hasattr(one, "peer")]
    between = [Send, Receive] * 3
    assert transfers == [Receive, *between, Exchange, *between, Send]


@st.composite
def drawn_orders(draw):
    """A pipeline, and any order in which its ranks can compute."""
    folded = draw(st.booleans())
    chunks = 2 if folded else draw(st.integers(1, 3))
    pipeline = Pipeline(ranks=draw(st.integers(1, 4)), chunks=chunks, folded=folded)
    num_slots, rng = draw(st.integers(1, 4)), draw(st.randoms(use_true_random=False))
    chains = [one for slot in range(num_slots) for one in passes_of(slot, pipeline, rng)]
    next_added = dict.fromkeys(range(pipeline.num_stages), 0)
    orders, done = [[] for _ in range(pipeline.ranks)], set()
    while chains:
        chain = rng.choice([one for one in chains if is_ready(one[0], done, next_added)])
        task = chain.pop(0)
        done.add(task)
        next_added[task.stage] += task.what in ("backward", "weight")
        orders[pipeline.rank_of(task.stage)].append(task)
        chains = [one for one in chains if one]
    return pipeline, num_slots, orders


def passes_of(slot, pipeline, rng):
    """Through all stages and back, and the weights' halves beside."""
    halved = rng.random() < 0.5
    there = [Task(what="forward", slot=slot, stage=n) for n in range(pipeline.num_stages)]
    kind = "input" if halved else "backward"
    back = [Task(what=kind, slot=slot, stage=one.stage) for one in reversed(there)]
    weights = [[Task(what="weight", slot=slot, stage=one.stage)] for one in there if halved]
    return [[*there, *back], *weights]


def is_ready(task, done, next_added):
    if task.what in ("backward", "weight") and next_added[task.stage] != task.slot:
        return False
    return task.what != "weight" or Task(what="input", slot=task.slot, stage=task.stage) in done


@given(drawn_orders())
def test_any_order_in_which_ranks_can_compute_becomes_lists_that_end(drawn):
    pipeline, num_slots, orders = drawn
    slots = slots_alone(num_slots)
    orders = [one_by_one(order) for order in orders]
    lists = [(*operations_of(one, slots), *END) for one in wire(orders, pipeline)]
    check_schedules(lists, pipeline, slots)


def test_a_message_is_under_way_for_as_long_as_it_is_said_to_be():
    schedules = legal("1f1b", 2, 1)[2]
    assert time_line(schedules, replace(EVEN, message=10)).length == 1 + 10 + 1 + 2 + 10 + 2


def test_messages_of_a_step_are_none_of_the_next_ones():
    there, back = (BorderMessage(what="activation", border=n, microbatch=0) for n in range(2))
    first = [Forward(microbatch=0), Exchange(peer=1, send=there, receive=back), *END]
    second = [Exchange(peer=0, send=back, receive=there), Forward(microbatch=0, stage=1), *END]
    assert time_line([first, second], EVEN).length == 2
    assert time_line([first * 2, second * 2], EVEN).length == 4


def test_ranks_that_wait_for_ever_have_no_timeline():
    first, second = legal("1f1b", 2, 2)[2]
    for broken in ([first[2:], second], [first[:-2], second]):
        with pytest.raises(ScheduleError, match="the ranks wait for each other"):
            time_line(broken)


def test_in_flight_are_all_of_gpipe_and_as_many_of_1f1b_as_ranks_follow():
    assert [peak_in_flight(one) for one in legal("gpipe", 4, 8)[2]] == [8, 8, 8, 8]
    assert [peak_in_flight(one) for one in legal("1f1b", 4, 8)[2]] == [4, 3, 2, 1]
    assert [peak_in_flight(one) for one in legal("zb-h1", 4, 8)[2]] == [4, 4, 4, 4]
    assert [peak_in_flight(one) for one in legal("interleaved", 4, 8)[2]] == [11, 9, 7, 5]
    assert [peak_in_flight(one) for one in legal("dualpipe-v", 4, 8)[2]] == [9, 9, 9, 9]


@given(RANKS, MICROBATCHES)
def test_stashing_keeps_as_many_versions_as_ranks_follow(ranks, count):
    pipeline = Pipeline(ranks=ranks)
    lists = asynchronous_schedules_of("pipedream", pipeline, count)
    check_asynchronous(lists, pipeline, slots_alone(count))
    for rank, schedule in enumerate(lists):
        assert peak_versions(schedule) <= ranks - rank
        assert peak_versions(schedule) == ranks - rank or count < 2 * ranks
        assert peak_in_flight(schedule) == min(count, ranks - rank)


@given(RANKS, st.integers(0, 4), st.integers(1, 4))
def test_2bw_keeps_two_versions(ranks, more, updates):
    pipeline, group = Pipeline(ranks=ranks), ranks + more
    lists = asynchronous_schedules_of("2bw", pipeline, updates * group, group)
    check_asynchronous(lists, pipeline, slots_alone(updates * group))
    most = min(updates, 2)
    assert {peak_versions(schedule) for schedule in lists} == {most}


def test_2bw_runs_groups_of_four_on_the_version_before_the_last():
    for schedule in asynchronous_schedules_of("2bw", Pipeline(ranks=4), 16, 4):
        forwards = [one.version for one in schedule if isinstance(one, Forward)]
        assert forwards == [0] * 8 + [1] * 4 + [2] * 4
        freed = freed_after(schedule)
        last_uses = {v: one.microbatch for v, one in freed.items() if isinstance(one, Backward)}
        assert last_uses == {0: 7, 1: 11, 2: 15}
        assert [one.version for one in schedule if isinstance(one, Step)] == [1, 2, 3, 4]


def test_2bw_needs_groups_as_long_as_its_pipeline():
    with pytest.raises(ScheduleError, match=r"group=3 is less than ranks=4: .* use 4 or more"):
        asynchronous_schedules_of("2bw", Pipeline(ranks=4), 8, 3)


def test_a_neighbour_that_gives_and_takes_is_asked_once_in_the_long_middle():
    for schedule in legal("1f1b", 4, 16)[2]:
        transfers = [one for one in schedule if isinstance(one, Send | Receive | Exchange)]
        assert sum(isinstance(one, Exchange) for one in transfers) > len(transfers) / 2
    first, second = legal("1f1b", 2, 3)[2]
    kinds = [type(one) for one in first if isinstance(one, Send | Receive | Exchange)]
    assert kinds == [Send, Exchange, Exchange, Receive]
    kinds = [type(one) for one in second if isinstance(one, Send | Receive | Exchange)]
    assert kinds == [Receive, Exchange, Exchange, Send]


SPEEDS = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)


@given(st.sampled_from(["gpipe", "1f1b", "zb-h1"]), SPEEDS, st.integers(1, 3), st.integers(1, 4))
def test_replicas_with_other_leaves_visit_the_same_stages_in_rounds(name, lengths, size, ranks):
    pipeline = Pipeline(ranks=ranks)
    dealing = deal_in_rounds(LeafTree(num_leaves=sum(lengths)), len(lengths), lengths)
    replicas = []
    for member, length in enumerate(lengths):
        slots = slots_of(dealing, member, size)
        assert len(slots) == max(lengths) * size
        lists = schedules_of(name, pipeline, slots)
        check_schedules(lists, pipeline, slots)
        computed = {one.microbatch for one in lists[0] if isinstance(one, Forward)}
        assert computed == {slot.microbatch for slot in slots} - {None}
        assert len(computed) == length * size
        replicas.append(lists)
    for position in range(ranks):
        check_company([lists[position] for lists in replicas])


@pytest.mark.parametrize(("name", "lengths"), [("interleaved", (4, 1)), ("dualpipe-v", (5, 2, 4))])
def test_so_they_do_where_messages_go_round_or_both_ways(name, lengths):
    pipeline = pipeline_of(name, 2, 3)
    dealing = deal_in_rounds(LeafTree(num_leaves=sum(lengths)), len(lengths), lengths)
    replicas = []
    for member in range(len(lengths)):
        slots = slots_of(dealing, member, 1)
        replicas.append(schedules_of(name, pipeline, slots))
        check_schedules(replicas[-1], pipeline, slots)
    for position in range(2):
        check_company([lists[position] for lists in replicas])


@given(NAMES, st.integers(1, 4), st.integers(1, 3))
def test_stages_of_a_rank_end_in_one_order_whatever_the_number_of_microbatches(name, ranks, more):
    """So replicas that send each leaf once, in runs, begin the same exchanges in the same order."""
    ends = set()
    for rounds in (2, 2 + more):
        lists = legal(name, ranks, rounds * ranks)[2]
        ends.add(tuple(tuple(last_ends(schedule)) for schedule in lists))
    assert len(ends) == 1


def last_ends(schedule):
    ends = [stage for _, stage, ends_leaf in visits(schedule) if ends_leaf]
    return [stage for n, stage in enumerate(ends) if stage not in ends[n + 1 :]]


def test_a_replica_without_any_leaf_visits_once_in_runs():
    dealing = deal_in_runs(LeafTree(num_leaves=2), 3)
    assert slots_of(dealing, 2, 2) == tuple(
        Slot(microbatch=None, leaf=None, ends_leaf=ends_leaf) for ends_leaf in (False, True)
    )
    [schedule] = schedules_of("1f1b", Pipeline(), slots_of(dealing, 2, 1))
    assert schedule == (
        KeepCompany(what="forward", number=0),
        KeepCompany(what="backward", number=0, ends_leaf=True),
        Reduce(),
        Vote(),
        Step(),
    )
    assert slots_of(dealing, 1, 2)[1] == Slot(microbatch=3, leaf=1, ends_leaf=True)


@given(NAMES, RANKS, MICROBATCHES)
def test_what_is_called_legal_is_and_else_the_plain_schedule_says_why(name, ranks, count):
    """Case B007: a pipeline hung with fewer microbatches than stages."""
    used, why = legal_schedule(name, ranks, [count])
    pipeline, slots = pipeline_of(used, ranks, 2), slots_alone(count)
    check_schedules(schedules_of(used, pipeline, slots), pipeline, slots)
    assert (used == name) == (why == "")
    if why:
        assert used == "1f1b"
        assert why.startswith(f"1f1b instead of {name}: ")
        assert why.endswith("; the bits are the same")


@pytest.mark.parametrize(
    ("name", "ranks", "counts", "text"),
    [
        ("gpipe", 1, [4], "one rank has nobody to wait for"),
        ("interleaved", 4, [8, 6], "microbatches take turns in groups of 4, and a replica has 6"),
        ("dualpipe-v", 4, [8, 7], "a pipeline of 8 stages needs as many .*, and a replica has 7"),
    ],
)
def test_every_replica_has_to_fit(name, ranks, counts, text):
    used, why = legal_schedule(name, ranks, counts)
    assert used == "1f1b"
    assert re.search(text, why)
    assert legal_schedule(name, ranks, [8 * ranks] if ranks > 1 else []) == (name, "")


def test_a_replica_without_microbatches_fits_anywhere():
    assert legal_schedule("dualpipe-v", 4, [8, 0]) == ("dualpipe-v", "")
    assert legal_schedule("1f1b", 1, [1]) == ("1f1b", "")


def test_a_schedule_is_for_its_own_kind_of_pipeline():
    for name, wrong in (
        ("1f1b", Pipeline(ranks=2, chunks=2)),
        ("interleaved", Pipeline(ranks=2)),
        ("dualpipe-v", Pipeline(ranks=2, chunks=2)),
        ("interleaved", Pipeline(ranks=2, chunks=2, folded=True)),
    ):
        with pytest.raises(ScheduleError, match=f"{name} is for a pipeline with chunks="):
            schedules_of(name, wrong, slots_alone(4))
    with pytest.raises(ScheduleError, match="dualpipe-v is not legal: a pipeline of 4 stages"):
        schedules_of("dualpipe-v", pipeline_of("dualpipe-v", 2), slots_alone(3))
    with pytest.raises(ScheduleError, match="afab is no schedule; use gpipe, 1f1b, interleaved, z"):
        schedules_of("afab", Pipeline(), slots_alone(1))
    with pytest.raises(LayoutError, match="are not those of 4 stages"):
        pipeline_of("dualpipe-v", 2, layers=(1, 2))


def test_orders_that_wait_for_each_other_are_refused():
    """The first rank waits for a gradient of the second, which computes nothing."""
    pipeline = Pipeline(ranks=2)
    orders = [one_by_one(PUBLISHED["gpipe"].order(pipeline, 0, 1)), ()]
    with pytest.raises(ScheduleError, match="waits for what is never there"):
        wire(orders, pipeline)


@pytest.mark.parametrize("checks", [False, True])
def test_lists_cost_as_many_calls_for_each_operation_however_many_there_are(checks):
    """Of one pipeline: no rank makes lists of other replicas."""

    def cost(num_passes):
        ranks = math.isqrt(num_passes)
        pipeline, slots, lists = legal("interleaved", ranks, 2 * ranks, 4)
        if checks:
            return calls_made(check_schedules, lists, pipeline, slots).total()
        return calls_made(schedules_of, "interleaved", pipeline, slots).total()

    assert growth(cost, 4 * 4, 12 * 12) < 1.2


def test_a_rank_of_64_computes_512_microbatches_through_4_stages_in_4096_passes():
    pipeline = pipeline_of("interleaved", 64, 4)
    calls = calls_made(interleaved, pipeline, 0, 512)
    order = interleaved(pipeline, 0, 512)
    assert len(order) == len(set(order)) == 2 * 512 * 4
    assert calls.total() < 4 * len(order)
