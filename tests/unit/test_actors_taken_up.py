"""What a start of a run says of the one before it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.jobs.continuing import continuation_of
from remesh.actors.jobs.earlier_wish import as_wished, taken_up
from remesh.actors.jobs.submit import _control_options, _keep, _ladder, _spec
from remesh.actors.node.leftovers import folder_name
from remesh.actors.run.folder import RunFolder
from remesh.cli.run_command import _introduce
from remesh.orchestrator.control.words.events import LadderChanged, RunStarted
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.plan.wish import wish_of, wished_ladder

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


def asked_for(folder, text):
    """A start of the run in this folder that was asked for these degrees."""
    job = load_job(TINY, ())
    wish = wish_of(text, job)
    stands = continuation_of(job, "d", folder, RunOptions())
    found = taken(job, folder)
    spec = _spec(stands, RunOptions(), folder, found)
    writer = JournalWriter(folder.path, 1, _control_options(spec, found, stands, folder))
    writer.event(RunStarted(), 1.0)
    asked = LadderChanged(ladder=wished_ladder(job, wish), reason="asked for", layout=wish)
    writer.event(asked, 2.0)
    writer.sync()


def test_what_a_run_was_asked_for_is_told_before_it_starts_and_as_if_its_job_said_so(folder):
    """user 4: not the mesh of a job that will not be formed."""
    asked_for(folder, "tp=2")
    job = load_job(TINY, ())
    wished, said = as_wished(job, folder.path, lambda ladder: ladder)
    assert wished.parallel.tp == 2
    assert said == (
        "tp=2, which the run was asked for, holds as if its job said so; "
        "remesh scale --layout auto gives it back"
    )
    other = load_job(TINY, ("parallel.pp=2",))  # a newer word than what was asked for
    assert as_wished(other, folder.path, lambda ladder: ladder) == (other, None)
    assert as_wished(job, folder.path, lambda _: None) == (job, None)
    assert as_wished(job, folder.path / "none", lambda ladder: ladder) == (job, None)


def first_lines(job, **options):
    lines = []
    _introduce(job, RunOptions(**options), SimpleNamespace(note=lines.append))
    return lines[1:3]  # after what it runs on


def test_the_first_lines_of_a_run_tell_the_mesh_that_it_was_asked_for(folder):
    asked_for(folder, "dp=2")
    job = load_job(TINY, (f"checkpoint.dir={folder.path}",))
    assert first_lines(job, fresh=True)[0].startswith("dp=4: ")
    said, mesh = first_lines(job)
    assert said.startswith("dp=2, which the run was asked for")
    assert mesh.startswith("dp=2: 12 leaves of 1 microbatch, 6 each")
