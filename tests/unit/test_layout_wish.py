"""Degrees that a live run is asked for: how they are written, and which meshes it may have then."""

from pathlib import Path

import pytest

from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.plan.planner import ladder_of
from remesh.orchestrator.plan.wish import LayoutWish, kept, said_by, wish_of, wished_ladder
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
EXPERTS = ("model.num_experts=4", "model.expert_width=64")


def tiny(*overrides):
    return load_job(TINY, overrides)


def degrees(text, job=None, before=None):
    wish = wish_of(text, job or tiny(), before)
    return wish and wish.degrees


def meshes(job, text):
    ladder = wished_ladder(job, wish_of(text, job))
    assert ladder.num_leaves == job.num_leaves
    return [str(rung.layout) for rung in ladder.rungs()]


def refusal(job, text):
    with pytest.raises(UserError) as caught:
        meshes(job, text)
    return str(caught.value)


def test_degrees_are_named_by_their_axes():
    assert degrees("tp=2,pp=2") == {"tp": 2, "pp": 2}
    assert str(wish_of(" tp=2, dp=3 ", tiny())) == "dp=3 tp=2"


@pytest.mark.parametrize(
    "text",
    ["", "tp", "tp=", "tp=0", "tp=-1", "tp=2;pp=2", "zero=2", "tp=2,tp=4", "tp=1.5", "auto,tp=2"],
)
def test_what_names_no_degrees_is_refused_with_an_example(text):
    with pytest.raises(UserError, match=r"expected degrees of dp, pp, cp, ep, tp, .* tp=2,pp=2"):
        wish_of(text, tiny())


def test_what_is_not_named_stays_as_it_was_asked_for_and_auto_gives_it_back():
    before = wish_of("tp=2,cp=2", tiny())
    assert degrees("pp=2", before=before) == {"tp": 2, "cp": 2, "pp": 2}
    assert degrees("tp=auto", before=before) == {"cp": 2}
    assert degrees("tp=auto,cp=auto", before=before) is None
    assert degrees("auto", before=before) is None


def test_a_run_may_have_the_meshes_that_its_job_would_have_with_these_degrees():
    assert meshes(tiny(), "tp=2") == ["tp=2", "dp=2 tp=2"]
    assert meshes(tiny(), "dp=2") == ["dp=1", "dp=2"]
    assert meshes(tiny(), "pp=2,cp=2") == ["pp=2 cp=2"]
    assert meshes(tiny(*EXPERTS), "ep=2") == ["dp=2 ep=2", "dp=4 ep=2"]


def test_no_wish_means_the_meshes_of_the_job():
    assert wished_ladder(tiny(), None) == ladder_of(tiny())


def test_a_degree_that_is_named_has_no_others_to_fall_to():
    job = tiny("parallel.pp=4", "elastic.pp=[2,1]")
    assert meshes(job, "pp=2") == ["pp=2", "dp=2 pp=2"]
    assert "pp=4 tp=1" not in meshes(job, "tp=1")
    assert {"dp=1", "pp=4"} <= set(meshes(job, "tp=1"))


def test_layers_that_are_written_down_hold_for_pipelines_of_the_jobs_length_only():
    job = tiny("parallel.pp=2", "parallel.layers=[3,1]")
    (flight,) = wished_ladder(job, wish_of("pp=4", job)).flights
    assert flight.highest.cut.layers == ()
    (same,) = wished_ladder(job, wish_of("dp=1", job)).flights
    assert same.highest.cut.layers == (3, 1)


@pytest.mark.parametrize("key", ["parallel.tp=3", "parallel.pp=5", "parallel.cp=48"])
def test_what_may_not_be_is_refused_in_the_words_of_the_rule_book(key):
    with pytest.raises(UserError) as caught:
        tiny(key)
    assert refusal(tiny(), key.removeprefix("parallel.")) == str(caught.value).removeprefix(
        "--set: "
    )


def test_sharing_tokens_in_groups_of_one_does_nothing_and_harms_nobody():
    job = tiny("parallel.tp=2", "parallel.sequence=true")
    assert meshes(job, "tp=1") == ["dp=1", "dp=2"]


def test_more_replicas_than_the_run_has_leaves_are_refused_with_their_number():
    job = tiny("parallel.tp=4")  # 1 leaf for the one replica that there can be
    fixed = "this run deals its batch in 1 leaf, fixed at its first start"
    assert refusal(job, "tp=1,dp=4") == f"parallel.dp = 4: {fixed}; use at most 1"
    assert meshes(job, "tp=1") == ["dp=1"]


def test_experts_that_leaves_do_not_divide_among_are_refused():
    job = tiny(*EXPERTS, "parallel.tp=4")
    fixed = "this run deals its batch in 1 leaf, fixed at its first start"
    assert refusal(job, "tp=1,ep=2") == f"parallel.ep = 2: {fixed}; use 1"


def test_a_wish_is_kept_by_a_job_that_says_the_same_degrees_as_when_it_was_made():
    wish = wish_of("tp=2", tiny())
    assert kept(wish, tiny("train.lr=0.1")) is wish
    assert kept(wish, tiny("parallel.tp=4")) is None
    assert kept(None, tiny()) is None
    assert said_by(tiny()) == "dp=auto pp=1 cp=1 ep=1 tp=1"
    assert LayoutWish(tp=2, beside=said_by(tiny())) == wish
