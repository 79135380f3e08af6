"""Cures that a refusal of a job names: whoever follows one gets past that refusal (user 17)."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remesh.orchestrator.job.job import Job, load_job
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
KEY = r"[a-z]+\.[a-z_]+"
COUNTS = st.sampled_from([1, 2, 3, 5, 6, 8, 24, 80, 200, 1 << 16, 1 << 20])
SMALL = st.sampled_from([1, 2, 3, 4, 5, 8, 1 << 16])
DRAWN = {
    "model.num_heads": SMALL,
    "model.width": COUNTS,
    "train.global_batch": COUNTS,
    "train.microbatch": COUNTS,
    "train.steps": st.sampled_from([1, 80, 1 << 40]),
    "train.lr_steps": COUNTS,
    "train.warmup_steps": COUNTS,
    "train.min_lr": st.sampled_from([0.0, 1e-3, 1.0]),
    "train.lr_curve": st.sampled_from(["constant", "cosine"]),
    "parallel.dp": st.just("auto") | SMALL,
    "parallel.tp": SMALL,
    "zero.stage": st.integers(0, 3),
    "zero.group": SMALL,
    "zero.keep_gathered": st.sampled_from(["true", "false"]),
    "elastic.max_workers": SMALL,
    "elastic.min_workers": SMALL,
    "elastic.min_nodes": SMALL,
    "elastic.max_nodes": SMALL,
    "metrics.host": st.sampled_from(["127.0.0.1", "localhost", "::1"]),
}


def refusal(chosen: dict) -> str | None:
    try:
        load_job(TINY, [f"{key}={value}" for key, value in chosen.items()])
    except UserError as error:
        return str(error).partition(": ")[2]
    return None


def advised(text: str, key: str) -> list[dict]:
    """The changes that a refusal names; values without a key are of the one it begins with."""
    _, _, advice = text.partition("; ")
    found = []
    for part in re.split(r",? or (?!less)", advice.removeprefix("use ").removeprefix("set ")):
        bare, _, along = part.partition(" with ")
        also = dict(re.findall(rf"({KEY}) = ([^\s,;]+)", along))
        values, _, of = bare.partition(" as ")
        if named := re.match(rf"({KEY}) = ([^\s,;]+)", values):
            found.append({named[1]: named[2], **also})
        elif re.match(r"(one of |at most |\d)", values):
            ends = re.search(r"(\d+) to (\d+)", values)
            numbers = ends.groups() if ends else re.findall(r"[\d.]+", values)
            found += [{of or key: number, **also} for number in numbers]
    return found


def same_kind(text: str) -> str:
    return re.sub(r"[\d.e+-]+", "#", text.partition("; ")[0])


def follow(chosen: dict) -> None:
    text = refusal(chosen)
    if text is None:
        return
    changes = advised(text, text.split(" ")[0].rstrip(":"))
    assert changes, text
    for change in changes:
        after = refusal({**chosen, **change})
        assert after is None or same_kind(after) != same_kind(text), (text, change, after)
        named = next(iter(change))
        assert after is None or not after.startswith(f"{named} = {change[named]}: expected"), after


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(chosen=st.fixed_dictionaries({}, optional=DRAWN))
def test_whoever_follows_an_advice_gets_past_the_refusal(chosen):
    """user 17: no value that is named is refused in its turn for itself."""
    follow(chosen)


@pytest.mark.parametrize(
    "chosen",
    [
        {"parallel.tp": 4, "parallel.dp": 65536},
        {"train.microbatch": 1 << 20},
        {"train.global_batch": 1 << 20, "train.microbatch": 1 << 20},
        {"model.width": 1 << 20, "model.num_heads": 5},
        {"zero.keep_gathered": "true"},
        {"elastic.min_workers": 8},
        {"elastic.min_nodes": 2, "elastic.max_nodes": 1},
        {"elastic.min_nodes": 8},
        {"train.min_lr": 1.0},
        {"train.lr_curve": "cosine", "train.lr_steps": 5, "train.warmup_steps": 0},
        {"train.lr_curve": "cosine", "train.lr_steps": 80, "train.warmup_steps": 100},
    ],
    ids=str,
)
def test_these_advices_are_good_too(chosen):
    """user 17: no value beyond what a key may have, and each sentence says what to set."""
    assert refusal(chosen)
    follow(chosen)


@pytest.mark.parametrize("batch", [2, 3, 24])
def test_no_microbatch_of_zero_is_advised(batch):
    """user 17: as it was seen."""
    chosen = {"train.global_batch": batch, "elastic.max_workers": 65536}
    text = refusal(chosen)
    assert "at most 0" not in text
    for change in advised(text, "train.global_batch"):
        assert refusal({**chosen, **change}) is None, (text, change)


def test_keys_of_this_table_are_keys_of_a_job():
    for key in DRAWN:
        table, _, field = key.partition(".")
        assert field in Job.model_fields[table].annotation.model_fields
