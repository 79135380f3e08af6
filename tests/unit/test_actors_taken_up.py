"""What a start of a run says of the one before it."""

from pathlib import Path

import pytest

from remesh.actors.jobs.continuing import continuation_of
from remesh.actors.jobs.earlier_wish import taken_up
from remesh.actors.jobs.submit import _control_options, _keep, _ladder, _spec
from remesh.actors.node.leftovers import folder_name
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import load_job

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def notices(folder, *overrides):
    """Those of a start with these overrides, whose bits are kept as a start keeps them."""
    job = load_job(TINY, overrides)
    stands = continuation_of(job, "d", folder, RunOptions())
    folder.keep(stands.first)
    spec = _spec(stands, RunOptions(), folder, taken(job, folder))
    folder.keep_bits(job.bits)
    return spec.notices


def taken(job, folder):
    return taken_up(job, folder, _ladder(job, RunOptions()), lambda ladder: ladder)


def test_the_first_start_changes_no_bits_and_neither_does_the_same_again(folder):
    assert notices(folder) == ()
    assert notices(folder, "train.steps=200", "zero.stage=1") == ()


def test_a_start_with_other_bits_says_which_and_the_next_one_no_more(folder):
    notices(folder)
    [said] = notices(folder, "train.grad_dtype=bf16", "train.threads=2")
    assert said == (
        "the bits change from here on: train.threads was 1 and is 2, "
        "train.grad_dtype was fp32 and is bf16"
    )
    assert notices(folder, "train.grad_dtype=bf16", "train.threads=2") == ()


def test_a_start_hands_on_what_holds_already_and_what_is_new(folder):
    """user 4."""
    for overrides in ((), ("train.lr=0.001",)):
        stands = continuation_of(load_job(TINY, overrides), "d", folder, RunOptions())
        _keep(folder, stands)
    stands = continuation_of(
        load_job(TINY, ("train.lr=0.001", "train.clip=0.5")), "d", folder, RunOptions()
    )
    found = taken(stands.job, folder)
    spec = _spec(stands, RunOptions(), folder, found)
    options = _control_options(spec, found, stands, folder)
    assert [one.key for one in options.amendments] == ["train.lr"]
    assert [one.key for one in spec.changes] == ["train.clip"]


def test_no_vault_of_a_start_can_be_taken_for_one_of_another(folder):
    """Its memory has another name, and who knows the token of one is a stranger to the other."""
    specs = []
    for _ in range(2):
        stands = continuation_of(load_job(TINY, ()), "d", folder, RunOptions())
        _keep(folder, stands)
        specs.append(_spec(stands, RunOptions(), folder, taken(stands.job, folder)))
    first, second = specs
    assert folder_name(first.run, "node-0") != folder_name(second.run, "node-0")
    assert first.vault_token != second.vault_token
    assert (first.start, second.start) == (1, 2)
