"""A Form as messages: what is shared goes once to a node, each snapshot is read by one rank."""

import pickle
from collections import Counter

import pytest
from control_values import held, slot
from counted import growth, lines_run

from remesh.actors.links.forms import StoreAddress, forms_by_node, moved_vaults, slot_readers
from remesh.actors.orders import VaultMap, joined
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words.records import FreshState, Member, PeerState
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.rung import Rung
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.layout import Layout

STORE = StoreAddress(host="10.0.0.1", port=4000, secret=b"s" * 32)
TIMERS = Timers(patience_s=0.5)
MOST_BYTES = 30e6


def vaults_of(nodes):
    names = list(nodes)
    return VaultMap(
        addresses={name: f"10.0.0.2:{number}" for number, name in enumerate(names)},
        buddies=dict(zip(names, names[1:] + names[:1], strict=True)),
        token="t" * 32,
    )


def forms(form, **more):
    nodes = sorted({member.node for member in form.members})
    return forms_by_node(form, STORE, **{"timers": TIMERS, "vaults": vaults_of(nodes), **more})


def form_of(*members, slots=(), layout=None, shards=1):
    layout = layout or Layout(dp=len(members))
    return cmd.Form(
        generation=3,
        rung=Rung(layout=layout, cut=Cut.of(layout, shards)),
        members=members,
        restore=PeerState(step=10, source=None, slots=tuple(slots)),
        from_step=10,
    )


def member(rank, node="a", at_step=10, part=None):
    return Member(worker=f"w{rank}", node=node, rank=rank, at_step=at_step, held=part or held())


def shards(layout, size):
    return [held(rank, layout=layout, shard_size=size) for rank in range(layout.world_size)]


def test_a_node_is_told_what_is_shared_once_and_its_own_ranks_only():
    told = forms(form_of(member(0), member(1), member(2, "b", at_step=None)), head_nodes={"b"})
    assert {node: [rank.worker for rank in one.ranks] for node, one in told.items()} == {
        "a": ["w0", "w1"],
        "b": ["w2"],
    }
    assert told["a"].shared is told["b"].shared
    assert told["a"].shared.fills
    order = joined(told["a"].shared, told["a"].ranks[1])
    assert (order.rank, order.generation, order.store_port) == (1, 3, 4000)
    assert (order.vaults.own, order.vaults.buddy) == ("10.0.0.2:0", "10.0.0.2:1")
    assert [rank.is_victim for one in told.values() for rank in one.ranks] == [False, True, False]


def test_nobody_lacks_anything_where_each_holds_what_its_place_asks_for():
    layout = Layout(dp=2)
    parts = shards(layout, 2)
    kept = form_of(member(0, part=parts[0]), member(1, part=parts[1]), layout=layout, shards=2)
    crossed = form_of(member(0, part=parts[1]), member(1, part=parts[0]), layout=layout, shards=2)
    assert not forms(kept)["a"].shared.fills
    assert forms(crossed)["a"].shared.fills


def test_a_slot_is_read_by_who_wants_it_on_its_node_else_anywhere_else_by_its_node():
    layout = Layout(dp=4)
    parts = shards(layout, 4)
    gone = [member(0, "a", None), member(1, "b", None), member(2, "b", None), member(3, "b", None)]
    near = form_of(*gone, layout=layout, shards=4, slots=[slot("b", parts[1], 10)])
    far = form_of(*gone, layout=layout, shards=4, slots=[slot("z", parts[2], 10)])
    assert list(slot_readers(near)) == [1]
    assert list(slot_readers(far)) == [2]
    others = shards(Layout(dp=2), 2)
    foreign = form_of(*gone, layout=layout, shards=4, slots=[slot("b", one, 10) for one in others])
    assert set(slot_readers(foreign)) == {1, 2}
    nowhere = form_of(*gone, layout=layout, shards=4, slots=[slot("z", others[0], 10)])
    assert set(slot_readers(nowhere)) <= {0, 1, 2, 3}


def test_of_replicas_that_lack_the_same_part_one_reads_it():
    lacking = form_of(
        member(0, at_step=None), member(1, at_step=None), slots=[slot("a", held(), 9)]
    )
    told = forms(lacking)["a"]
    assert sum(len(rank.slots) for rank in told.ranks) == 1
    assert told.shared.restore.slots == ()
    fresh = cmd.Form(
        generation=1, rung=lacking.rung, members=lacking.members, restore=FreshState(), from_step=0
    )
    assert not any(rank.slots for rank in forms(fresh)["a"].ranks)


def a_form_among(num_nodes, *, from_vaults):
    """Tensor groups of eight, shards over sixteen; a node's ranks are new, or all of them are."""
    layout = Layout(dp=num_nodes, tp=8)
    parts = shards(layout, 16)
    known = [f"node-{number:05d}" for number in range(num_nodes)]
    ranks = [
        member(rank, known[rank // 8], None if from_vaults or rank < 8 else 10, part)
        for rank, part in enumerate(parts)
    ]
    found = [slot(m.node, m.held, 10) for m in ranks[:128]] if from_vaults else []
    return form_of(*ranks, slots=found, layout=layout, shards=16)


@pytest.mark.parametrize("from_vaults", [False, True])
def test_orders_cost_the_same_for_each_rank_of_thousands(from_vaults):
    """speed 1: each member's walked over all members, twice."""
    made = {size: a_form_among(size, from_vaults=from_vaults) for size in (16, 128)}
    assert growth(lambda num: lines_run(forms, made[num]), 16, 128) < 1.2


@pytest.mark.parametrize("from_vaults", [False, True])
def test_all_orders_of_sixteen_thousand_ranks_take_thirty_megabytes(from_vaults):
    form = a_form_among(2048, from_vaults=from_vaults)
    told = forms(form)
    assert len(told) == 2048
    assert sum(len(one.ranks) for one in told.values()) == 16384
    assert sum(len(pickle.dumps(one)) for one in told.values()) < MOST_BYTES
    read = Counter(order.slot for one in told.values() for r in one.ranks for order in r.slots)
    assert read == Counter(form.restore.slots)


def test_only_nodes_whose_vaults_are_others_are_told():
    before = vaults_of("abcd")
    told = {node: before.order(node) for node in "abcd"}
    moved = VaultMap(
        addresses={**before.addresses, "c": "10.0.0.2:99"}, buddies=before.buddies, token="t" * 32
    )
    assert set(moved_vaults(told, moved, "abcd")) == {"b", "c"}
    assert moved_vaults(told, before, "abcd") == {}
    assert moved_vaults({}, VaultMap(addresses={}, buddies={}, token=""), "abcd") == {}
