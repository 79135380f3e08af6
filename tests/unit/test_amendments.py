"""What of a run may change on the way, and what each step of it trains with."""

from itertools import combinations

import pytest
from test_curve import FIELDS, tiny

from remesh.data.skips import parse_skips
from remesh.orchestrator.control.words import codec
from remesh.orchestrator.job.amendments import (
    Amendment,
    Amendments,
    changes_to,
    flat,
    parted,
    skip_problem,
    skips_of,
    values_at,
    with_changes,
)
from remesh.orchestrator.job.curve import AMENDABLE, KeyClass, class_of, refusal
from remesh.orchestrator.user_errors import UserError

LOWER = Amendment(step=41, key="train.lr", old=3e-3, new=1e-3)
LATER = Amendment(step=61, key="train.lr", old=1e-3, new=5e-4)
SKIPS = Amendment(step=41, key="data.skip", old="", new="50..52, 60")
ANOTHER = {
    "data.skip": 'data.skip=["900"]',
    "train.lr": "train.lr=1e-3",
    "train.min_lr": "train.min_lr=1e-4",
    "train.lr_curve": "train.lr_curve=constant",
    "train.lr_steps": "train.lr_steps=500",
    "train.warmup_steps": "train.warmup_steps=3",
    "train.weight_decay": "train.weight_decay=0.0",
    "train.beta1": "train.beta1=0.8",
    "train.beta2": "train.beta2=0.99",
    "train.eps": "train.eps=1e-7",
    "train.clip": "train.clip=0.5",
    "train.z_loss": "train.z_loss=1e-4",
    "train.auxiliary_loss": "train.auxiliary_loss=0.01",
    "train.router_z_loss": "train.router_z_loss=1e-3",
    "train.balance_rate": "train.balance_rate=1e-3",
}
COSINE = ("train.lr_curve=cosine", "train.lr=1e-2", "train.lr_steps=400")


def changed(first, wanted, amendments=(), after_step=40):
    return changes_to(wanted.amendable, first.fingerprint("d"), amendments, after_step)


def test_what_may_change_shapes_the_curve_and_nothing_else():
    assert set(ANOTHER) == AMENDABLE <= FIELDS.keys()
    assert {class_of(key) for key in AMENDABLE} == {KeyClass.CURVE, KeyClass.COSINE}
    assert tiny(*COSINE).amendable.keys() == AMENDABLE
    assert AMENDABLE - tiny().amendable.keys() == {"train.min_lr", "train.lr_steps"}


@pytest.mark.parametrize("key", sorted(AMENDABLE))
def test_each_key_that_may_change_is_amended_from_the_next_step_on(key):
    """user 4: fault 4's kind is every key of the curve."""
    first, wanted = tiny(*COSINE), tiny(*COSINE, ANOTHER[key])
    old, new = first.amendable[key], wanted.amendable[key]
    amendments = with_changes((), changed(first, wanted), 40)
    assert amendments == (Amendment(step=41, key=key, old=old, new=new),)
    assert wanted.at(40, amendments).amendable[key] == old
    assert first.at(41, amendments).amendable[key] == new
    assert refusal(first.fingerprint("d"), wanted.fingerprint("d")) is None


def test_a_job_that_asks_for_the_values_that_hold_changes_nothing():
    lower = tiny("train.lr=1e-3")
    assert changed(tiny(), tiny("train.steps=900", "train.weight_decay=0.1")) == ()
    assert changed(tiny(), lower, (LOWER,), 40) == changed(tiny(), lower, (LOWER,), 55) == ()


def test_going_back_to_the_old_value_is_another_amendment():
    amendments = with_changes((LOWER,), changed(tiny(), tiny(), (LOWER,), 60), 60)
    assert amendments == (LOWER, Amendment(step=61, key="train.lr", old=1e-3, new=3e-3))
    rates = [tiny().at(step, amendments).train.lr for step in (40, 41, 60, 61)]
    assert rates == [3e-3, 1e-3, 1e-3, 3e-3]


def test_a_change_that_no_step_has_trained_with_is_taken_back_without_a_trace():
    assert with_changes((LOWER,), changed(tiny(), tiny(), (LOWER,), 40), 40) == ()


def test_a_run_that_goes_back_before_a_change_keeps_it_for_its_steps_only():
    assert changed(tiny(), tiny(), (LOWER,), 20) == ()
    sooner = with_changes((LOWER,), changed(tiny(), tiny("train.lr=1e-3"), (LOWER,), 20), 20)
    assert sooner == (Amendment(step=21, key="train.lr", old=3e-3, new=1e-3),)


def test_a_change_holds_for_no_step_that_is_trained():
    asked = Amendment(step=1, key="train.lr", old=3e-3, new=1e-3)
    assert with_changes((), (asked,), 40) == (LOWER,)
    assert with_changes((LOWER,), (asked,), 55) == (LOWER,)


def test_a_curve_that_becomes_another_takes_along_what_shapes_it():
    amendments = with_changes((), changed(tiny(), tiny(*COSINE)), 40)
    assert {(one.key, one.old) for one in amendments} == {
        ("train.lr", 3e-3),
        ("train.lr_curve", "constant"),
        ("train.lr_steps", None),
    }
    assert str(amendments[-1]) == "from step 41 on: train.lr_steps unset -> 400"
    assert tiny(*COSINE).at(40, amendments).train.lr_curve == "constant"
    back = changes_to(tiny().amendable, tiny().fingerprint("d"), amendments, 60)
    assert {one.key for one in back} == {"train.lr", "train.lr_curve"}


def test_a_fingerprint_tells_them_and_gives_them_back():
    first, amendments = tiny().fingerprint("d"), (LOWER, SKIPS, LATER)
    told = flat(first, amendments)
    assert told["train.lr@41"] == "0.003 -> 0.001"
    assert told["data.skip@41"] == '"" -> "50..52, 60"'
    assert parted(told) == (first, amendments)
    assert codec.decode(Amendments, codec.encode(Amendments, amendments)) == amendments


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("train.lr@41", "0.003"),
        ("train.lr@41", "0.003 -> lower"),
        ("train.lr@41", "0.003 -> null"),
        ("train.lr@0", "0.003 -> 0.001"),
        ("train.lr@x", "0.003 -> 0.001"),
        ("model.width@41", "128 -> 256"),
        ("train.lr@41", 7),
    ],
)
def test_a_damaged_one_is_refused_by_name(key, text):
    with pytest.raises(UserError, match=f"{key} = .* is no change of a key; bring the file back"):
        parted({**tiny().fingerprint("d"), key: text})


@pytest.mark.parametrize(
    ("standing", "wanted"),
    [("", "41..42"), ("", "60"), ("10..12", "10..12, 44"), ("50..60", ""), ("10..12", "10..12")],
)
def test_batches_that_are_to_come_may_be_skipped_or_skipped_no_more(standing, wanted):
    """inputs B1."""
    assert skip_problem(wanted, standing, 40) is None
    batches = [skips_of(text).batch_of(step) for text in (standing, wanted) for step in (39, 40)]
    assert batches[:2] == batches[2:]


@pytest.mark.parametrize(
    ("standing", "wanted", "first"),
    [
        ("", "40", 41),
        ("", "38..45", 41),
        ("10..12", "", 44),
        ("10..12", "10..13", 44),
        ("30..35", "30..47", 47),
    ],
)
def test_batches_that_are_consumed_may_not_and_the_first_that_may_be_is_named(
    standing, wanted, first
):
    """inputs B1."""
    said = skip_problem(wanted, standing, 40)
    assert said is not None
    assert said.endswith(f"is {first}")
    assert f'is "{wanted}"' in said


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("model.width=256", "model.width was 128 and is 256 (it shapes the parameters)"),
        ("train.global_batch=48", "was 24 and is 48 (it shapes which samples a step has)"),
        ("job.seed=1", "job.seed was unset and is 1 (it shapes the order of the samples)"),
        ("train.dtype=bf16", "is bf16 (it shapes the arithmetic of every step)"),
    ],
)
def test_what_makes_another_run_is_refused_with_the_reason(override, reason):
    """user 4."""
    said = refusal(tiny().fingerprint("d"), tiny(override, "train.lr=1e-3").fingerprint("d"))
    assert said is not None
    assert reason in said
    assert "train.lr" not in said


def test_values_and_their_order_do_not_depend_on_each_other():
    for first, second in combinations((LOWER, LATER, SKIPS), 2):
        both = with_changes(with_changes((), (first,), 0), (second,), 0)
        assert values_at(both, 100)[second.key] == second.new
    assert [one.step for one in with_changes((LATER,), (SKIPS,), 0)] == [41, 61]
    assert parse_skips(tiny().at(41, (SKIPS,)).data.skip).ranges == ((50, 52), (60, 60))
