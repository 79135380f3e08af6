"""Buddies: in another failure domain where there is one, and nobody is the buddy of many."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from remesh.orchestrator.plan.buddies import buddies


def test_two_nodes_keep_copies_for_each_other_and_one_has_nobody():
    assert buddies({"a": "", "b": ""}) == {"a": "b", "b": "a"}
    assert buddies({"a": "rack", "b": "rack"}) == {"a": "b", "b": "a"}
    assert buddies({"a": "rack"}) == buddies({}) == {}


def test_a_domain_with_most_of_the_nodes_shares_those_of_the_others():
    found = buddies({"a": "x", "b": "x", "c": "x", "d": "y", "e": "y"})
    assert {found[node] for node in "abc"} == {"d", "e"}
    assert {found[node] for node in "de"} <= set("abc")


@given(st.lists(st.sampled_from(["", "x", "y", "z"]), min_size=2, max_size=12))
def test_a_buddy_is_another_node_of_another_domain_if_there_is_one(names):
    domains = {f"node-{number}": name for number, name in enumerate(names)}
    found = buddies(domains)
    assert found.keys() == domains.keys()
    for node, buddy in found.items():
        assert buddy != node
        elsewhere = [other for other, name in domains.items() if not name or name != domains[node]]
        if set(elsewhere) - {node}:
            assert not domains[buddy] or domains[buddy] != domains[node]


@given(st.lists(st.sampled_from(["", "x", "y"]), min_size=2, max_size=12))
def test_everybody_is_the_buddy_of_one_where_no_domain_has_most_of_the_nodes(names):
    domains = {f"node-{number}": name for number, name in enumerate(names)}
    sizes = Counter(name for name in names if name)
    if max(sizes.values(), default=1) * 2 <= len(names):
        assert sorted(buddies(domains).values()) == sorted(domains)
