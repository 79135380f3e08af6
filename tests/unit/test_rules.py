"""The rule book: what it offers works, and the job file and the engine read the same one."""

import itertools
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remesh.orchestrator.job.checks import KEYS
from remesh.orchestrator.job.job import Job, load_job
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.book.asked import Asked
from remesh.parallel.plan.book.divisors import divisors, near_multiples
from remesh.parallel.plan.book.rules import RULES, WITHOUT_EFFECT
from remesh.parallel.plan.book.verdict import BARE, broken_rules, judge, problems, shown
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.shares import tensor_shares

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
BOOKS = {"all": RULES + WITHOUT_EFFECT, "engine's": RULES}
SMALL = st.integers(1, 12)
SIZES = {
    "num_layers": SMALL,
    "width": st.integers(1, 24),
    "num_heads": SMALL,
    "num_kv_heads": st.none() | SMALL,
    "ffn_width": st.integers(1, 24),
    "positions": st.sampled_from(["rope", "learned"]),
    "seq_len": st.integers(1, 24),
    "global_batch": st.integers(1, 30),
    "microbatch": SMALL,
    "dp": st.none() | SMALL,
    "tp": st.integers(1, 6),
    "pp": st.integers(1, 5),
    "schedule": st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe-v"]),
    "virtual_stages": st.integers(1, 3),
    "layers": st.just(()) | st.lists(SMALL, max_size=6).map(tuple),
    "cp": st.integers(1, 3),
    "ep": st.integers(1, 4),
    "num_experts": st.none() | st.integers(0, 6),
    "top_k": st.none() | st.integers(1, 4),
    "inner_width": st.none() | st.integers(1, 24),
    "num_dense_layers": st.none() | st.integers(0, 5),
    "sequence": st.booleans(),
    "zero_stage": st.integers(0, 3),
    "zero_group": st.integers(0, 3),
    "max_workers": st.none() | st.integers(1, 40),
    "elastic_pp": st.just(()) | st.lists(st.integers(1, 8), max_size=3).map(tuple),
}
FITTING = Asked(
    num_layers=4,
    width=24,
    num_heads=12,
    num_kv_heads=4,
    ffn_width=48,
    positions="rope",
    seq_len=48,
    global_batch=24,
    microbatch=2,
    tp=2,
    max_workers=8,
)


def one_wrong(draw):
    """A choice that fits, with one value drawn anew: what users write."""
    name = draw(st.sampled_from(list(SIZES)))
    return replace(FITTING, **{name: draw(SIZES[name])})


DRAWN = st.builds(Asked, **SIZES) | st.composite(one_wrong)()


def changes(offer):
    return [{offer.name: value, **offer.along} for value in offer.values]


@pytest.mark.parametrize("book", BOOKS)
@settings(max_examples=250)
@given(asked=DRAWN)
def test_each_cure_that_is_named_mends_its_rule_and_breaks_none(book, asked):
    rules = BOOKS[book]
    before = set(broken_rules(asked, rules))
    for problem in judge(asked, rules):
        assert problem.offers, problem.text(BARE)
        for change in itertools.chain.from_iterable(map(changes, problem.offers)):
            after = set(broken_rules(replace(asked, **change), rules))
            assert problem.rule not in after, (problem.text(BARE), change)
            assert after < before, (problem.text(BARE), change)


@settings(max_examples=250)
@given(asked=DRAWN, pick=st.integers(0, 99))
def test_whoever_follows_the_first_problem_gets_to_a_choice_that_fits(asked, pick):
    for _ in BOOKS["all"]:
        problem = next(judge(asked, BOOKS["all"]), None)
        if problem is None:
            return
        offered = [change for offer in problem.offers for change in changes(offer)]
        asked = replace(asked, **offered[pick % len(offered)])
    assert not broken_rules(asked, BOOKS["all"])


def test_what_fits_breaks_no_rule():
    assert broken_rules(FITTING, BOOKS["all"]) == []


def job_of(asked: Asked) -> Job:
    overrides = {name: getattr(asked, name) for name in KEYS}
    texts = [
        f"{KEYS[name]}={shown(value)}" for name, value in overrides.items() if value is not None
    ]
    return load_job(TINY, texts)


def refusal(asked: Asked) -> str:
    with pytest.raises(UserError) as caught:
        job_of(asked)
    return str(caught.value)


def is_a_job(tables: dict, model: dict, tp: int, *, sequence: bool) -> bool:
    train = {**tables["train"], "seq_len": model["seq_len"]}
    own = {name: value for name, value in model.items() if name != "seq_len"}
    try:
        Job.model_validate(
            {
                **tables,
                "train": train,
                "model": own,
                "parallel": {"tp": tp, "sequence": sequence},
            }
        )
    except ValueError:
        return False
    return True


def is_a_model(model: dict, tp: int, *, sequence: bool) -> bool:
    try:
        tensor_shares(ModelConfig(**model), tp, 0, sequence=sequence)
    except LayoutError:
        return False
    return True


@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("sequence", [False, True])
def test_the_job_file_takes_what_the_engine_takes(positions, tp, sequence):
    """3,000 models and degrees; a job also refuses what would do nothing."""
    tables = {
        "job": {"name": "a"},
        "data": {"dir": "a"},
        "train": {"steps": 1, "global_batch": 8, "microbatch": 1},
        "elastic": {"max_workers": 8},
    }
    sizes = itertools.product((6, 12, 24), (1, 2, 3, 4, 6), (1, 2, 3, 4, 5), (8, 12), (4,))
    names = ("width", "num_heads", "num_kv_heads", "ffn_width", "seq_len")
    found = set()
    for drawn in sizes:
        model = dict(zip(names, drawn, strict=True))
        model |= {"num_layers": 1, "vocab_size": 256, "positions": positions}
        taken = is_a_model(model, tp, sequence=sequence)
        idle = sequence and tp == 1
        job_taken = is_a_job(tables, model, tp, sequence=sequence)
        assert job_taken == (taken and not idle), (model, tp)
        found.add(taken)
    assert found == ({False} if sequence and 4 % tp else {True, False})


def test_one_sentence_serves_both_with_the_names_of_each():
    asked = replace(FITTING, ffn_width=40, tp=6, max_workers=12)
    assert refusal(asked) == (
        "--set: parallel.tp = 6 neither divides model.num_kv_heads = 4 nor is a multiple of it; "
        "use one of 1, 2, 4"
    )
    told = {name: getattr(asked, name) for name in KEYS if name in ModelConfig.__annotations__}
    sizes = {name: value for name, value in told.items() if value is not None}
    with pytest.raises(LayoutError) as caught:
        tensor_shares(ModelConfig(**sizes, vocab_size=256), 6, 0, sequence=False)
    assert str(caught.value) == (
        "tp=6 neither divides num_kv_heads=4 nor is a multiple of it; use one of 1, 2, 4; "
        "tp=6 does not divide ffn_width=40; use one of 1, 2, 4"
    )


def test_heads_of_odd_width_are_a_job_with_learned_positions():
    odd = replace(FITTING, width=6, num_heads=2, num_kv_heads=2)
    assert job_of(replace(odd, positions="learned")).model.num_heads == 2
    assert refusal(odd) == (
        "--set: model.num_heads = 2 cuts model.width = 6 into heads of odd width, and "
        "model.positions = rope turns pairs; use one of 4, 8 as model.width, or "
        "model.positions = learned"
    )


@pytest.mark.parametrize(
    ("change", "seen", "cures"),
    [
        ({"pp": 5}, "pp=5 stages need as many layers, and there are num_layers=4", "at most 4"),
        (
            {"pp": 2, "schedule": "dualpipe-v", "num_layers": 3},
            (
                "pp=2 with schedule=dualpipe-v makes 4 virtual stages, which need as many layers, "
                "and there are num_layers=3"
            ),
            "1, or schedule=1f1b",
        ),
        (
            {"pp": 2, "schedule": "interleaved", "virtual_stages": 3},
            (
                "pp=2 with schedule=interleaved makes 6 virtual stages, which need as many layers, "
                "and there are num_layers=4"
            ),
            "virtual_stages=2, or pp=1, or schedule=1f1b",
        ),
        (
            {"pp": 4, "num_layers": 30, "layers": (7, 7, 7, 7)},
            "layers=[7, 7, 7, 7] adds up to 28, and there are num_layers=30",
            "one of [8, 8, 7, 7], []",
        ),
        (
            {"num_layers": 20, "layers": (1,)},
            "layers=[1] adds up to 1, and there are num_layers=20",
            "one of [20], []",
        ),
        (
            {"pp": 2, "layers": (1, 1, 2)},
            "layers=[1, 1, 2] is not of 2 stages, which pp=2 has",
            "one of [2, 2], []",
        ),
        (
            {"elastic_pp": (5, 4, 2)},
            "elastic_pp=[5, 4, 2]: so many stages need as many layers, and there are num_layers=4",
            "[4, 2]",
        ),
        (
            {"max_workers": 7, "elastic_pp": (4, 2)},
            "elastic_pp=[4, 2] asks for a mesh of 8 workers, and 7 are the most",
            "[2], or max_workers=8",
        ),
        (
            {"cp": 5},
            "cp=5 ranks take two runs of the tokens each, and do not divide seq_len=48 so",
            "one of 1, 2, 3, 4, 6, 8, 12, 24",
        ),
        (
            {"cp": 2, "tp": 16, "num_heads": 16, "width": 32, "num_kv_heads": 16, "sequence": True},
            "tp=16 with cp=2 does not divide seq_len=48, which sequence=true shares out",
            "one of 1, 2, 4, 8, or sequence=false",
        ),
        (
            {"ep": 4, "dp": 3, "cp": 2},
            "ep=4 does not divide the dp=3 times cp=2 ranks that hold experts",
            "one of 1, 2, 6",
        ),
        (
            {"ep": 5},
            "global_batch=24 in microbatches of 2 makes 12, which ep=5 does not divide",
            "one of 1, 2, 3, 4, 6, 12 as ep",
        ),
        (
            {"ep": 8, "dp": 8},
            "global_batch=24 in microbatches of 2 makes 12, which ep=8 does not divide",
            "one of 1, 2, 4 as ep, or one of 1, 3 as microbatch",
        ),
    ],
)
def test_axes_and_schedules_have_their_rules(change, seen, cures):
    asked = replace(FITTING, **{"max_workers": None, **change})
    assert next(problems(asked, RULES)) == f"{seen}; use {cures}"


def test_values_that_mend_only_together_are_named_together():
    asked = replace(FITTING, num_heads=1, num_kv_heads=1, tp=3, sequence=True)
    assert refusal(asked) == (
        "--set: parallel.tp = 3 does not divide model.num_heads = 1; "
        "use 1 with parallel.sequence = false"
    )


def test_a_rule_keeps_silent_on_what_is_not_known():
    assert list(problems(Asked(dp=4, zero_group=3))) == [
        "zero_group=3 does not divide dp=4; use one of 1, 2, 4, or zero_group=0"
    ]
    assert list(problems(Asked(tp=5))) == []


def test_every_value_that_is_asked_about_has_its_key_in_the_job_file():
    assert list(KEYS) == [field.name for field in fields(Asked)]
    for key in KEYS.values():
        table, name = key.split(".")
        assert name in Job.model_fields[table].annotation.model_fields


def test_divisors_and_multiples():
    for number in range(1, 200):
        assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]
        for unit in range(1, 20):
            near = near_multiples(number, unit)
            assert near
            assert all(n > 0 and n % unit == 0 and abs(n - number) < unit for n in near)
    assert (near_multiples(250, 4), near_multiples(8, 4), near_multiples(3, 8)) == (
        [248, 252],
        [8],
        [8],
    )


@pytest.mark.parametrize("workers", [4, 6, 7, 12])
@pytest.mark.parametrize(("tp", "group"), [(1, 0), (1, 2), (2, 0), (2, 2)])
def test_a_job_reaches_as_many_replicas_as_the_rules_count_with(workers, tp, group):
    asked = replace(FITTING, tp=tp, max_workers=workers, zero_stage=1, zero_group=group)
    assert job_of(asked).max_dp == asked.most_replicas
