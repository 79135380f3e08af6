"""docs/failures.md is walked: each row is made to happen, and says and ends as it does there.

A row is added there with a key, and here with what does it: a function of a finished run that gives
what the command said, a golden trace, which says what the machine decides, or the name of a test
that shows it.
"""

import ast
import errno
import os
import re
from pathlib import Path

import pytest
from file_storm import CHANGES
from finished_run import Said, contact_of, finished_run, made_run
from test_damaged_files import somebody_answers

from remesh.actors.run.run_view import failed
from remesh.cli.driving.drive import exit_code
from remesh.orchestrator.job.driver_words import RunStatus

ROOT = Path(__file__).parents[2]
COLUMNS = 5


def rows():
    """(key, what is seen, exit code) of each row."""
    for line in (ROOT / "docs" / "failures.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] != "key" and not cells[0].startswith("-"):
            assert len(cells) == COLUMNS, line
            yield cells[0], re.findall(r"`([^`]+)`", cells[2]), int(cells[3])


def step_7(run):
    lines = run.journal.read_text().splitlines(keepends=True)
    return lines, next(at for at, line in enumerate(lines) if '"step":7' in line)


def journal_changed(run):
    lines, at = step_7(run)
    del lines[at]
    run.journal.write_text("".join(lines))
    return run.take_up()


def journal_cut(run):
    lines, at = step_7(run)
    run.journal.write_text("".join(lines[:at]))
    return run.take_up()


def journal_gone(run):
    run.journal.unlink()
    return run.take_up()


def journal_unreadable(run):
    run.journal.write_text("{}\n")
    return run.remesh("status", run.run_dir)


def journal_copied(run):
    (run.journal.parent / "000009.jsonl").write_bytes(run.journal.read_bytes())
    return run.take_up()


def change(path):
    path.write_bytes(path.read_bytes()[:-1] + b"\1")


def checkpoints_all(run):
    for step in (4, 8, 12):
        change(run.shard(step))
    return run.take_up()


def checkpoint_verify(run):
    change(run.shard(12))
    return run.remesh("checkpoint", "verify", f"{run.run_dir}/12")


def damaged(name):
    def damage(run):
        (run.run_dir / name).write_text("{")
        return run.take_up("--set", "train.steps=20")

    return damage


def contact_foreign(run):
    with somebody_answers({"phase": "running"}) as port:
        run.run.publish(contact_of(port=port))
        return run.take_up()


def format_other(run):
    (run.run_dir / "fingerprint.json").write_text('{"format_version": 7, "fingerprint": {}}')
    return run.take_up()


def samples_lost(run):
    folder = run.folder / "again"
    folder.mkdir()
    return made_run(folder, lambda _job, step: f"{step:040x}").take_up()


def job_no_toml(run):
    run.job_file.write_text("steps: 80\n")
    return run.take_up()


def job_endless(run):
    CHANGES["an endless device"](run.job_file, None)
    return run.take_up()


def data_missing(run):
    (run.folder / "data" / "manifest.json").unlink()
    return run.take_up()


def data_damaged(run):
    change(run.folder / "data" / "manifest.json")
    return run.take_up()


def report_foreign(run):
    return run.take_up("--report", run.job_file)


def controller_files(_run):
    status = RunStatus(phase="running", step=1, steps=2)
    told = failed(status, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    return Said(exit_code(told, None), told.reason, "")


def in_trace(name):
    """What the run says in `tests/traces/NAME.txt`, and how its command ends."""

    def told(_run):
        text = (ROOT / "tests" / "traces" / f"{name}.txt").read_text()
        (ended,) = re.findall(r"^ *END (\w+):", text, re.MULTILINE) or ["finished"]
        last = RunStatus(phase=ended, step=1, steps=2, ended=True, status=ended)
        return Said(exit_code(last, None), text, "")

    return told


MADE = {
    "journal-changed": journal_changed,
    "journal-cut": journal_cut,
    "journal-gone": journal_gone,
    "journal-unreadable": journal_unreadable,
    "journal-copied": journal_copied,
    "checkpoints-all": checkpoints_all,
    "checkpoint-verify": checkpoint_verify,
    "fingerprint-damaged": damaged("fingerprint.json"),
    "bits-damaged": damaged("bits.json"),
    "contact-foreign": contact_foreign,
    "format-other": format_other,
    "samples-lost": samples_lost,
    "job-missing": lambda run: run.remesh("run", run.folder / "nowhere.toml"),
    "job-no-toml": job_no_toml,
    "job-endless": job_endless,
    "job-unknown-key": lambda run: run.take_up("--set", "train.stepz=7"),
    "other-run": lambda run: run.take_up("--set", "model.ffn_width=16"),
    "data-missing": data_missing,
    "data-damaged": data_damaged,
    "no-cluster": lambda run: run.take_up("--set", "train.steps=20"),
    "no-run": lambda run: run.remesh("status", run.folder / "data"),
    "report-foreign": report_foreign,
    "controller-files": controller_files,
    "worker-frozen": in_trace("frozen_worker"),
    "worker-hangs": in_trace("hung_worker"),
    "worker-late": in_trace("late_starts"),
    "links-broken": in_trace("bad_link"),
    "node-back": in_trace("flapping_host"),
    "standstill": in_trace("stood_still"),
    "stop-forming": in_trace("stop_while_forming"),
    "stop-loss": in_trace("stop_writer_dies"),
    "stop-unsaved": in_trace("save_without_a_sign"),
    "notice-over": in_trace("head_notice_over"),
    "too-many": in_trace("crash_loop"),
    "too-few": in_trace("too_few"),
    "commit-hangs": in_trace("commit_without_answer"),
}

SHOWN = {
    "checkpoint-last": "unit/test_damaged_files.py::"
    "test_a_run_is_finished_if_its_last_checkpoint_is_whole",
    "claim-damaged": "unit/test_damaged_journal.py::"
    "test_a_damaged_claim_is_named_by_a_controller_that_is_back",
    "journal-deleted-live": "cluster/test_controller_restart.py::"
    "test_a_controller_that_is_back_without_its_journal_says_so_and_leaves_nothing",
    "data-block": "cluster/test_bad_input.py::test_a_corrupt_data_block",
    "disk-full": "cluster/test_bad_input.py::test_a_disk_that_fills_up_in_mid_run",
    "worker-killed": "cluster/test_vault.py",
    "controller-killed": "cluster/test_controller_restart.py::"
    "test_the_command_and_the_journal_tell_each_takeover_once",
    "head-gone": "cluster/test_dead_head.py::"
    "test_a_head_that_is_killed_is_one_line_and_code_4_and_the_run_can_be_taken_up",
    "ctrl-c": "cluster/test_interruptions.py::"
    "test_ctrl_c_saves_at_a_step_boundary_and_leaves_nothing",
    "ctrl-c-twice": "unit/test_cli_drive.py::"
    "test_the_second_ctrl_c_ends_at_once_even_in_a_call_that_hangs",
    "agent-killed": "cluster/test_agents.py::"
    "test_ranks_and_vault_end_with_an_agent_that_ray_kills_and_the_run_goes_on",
    "node-held": "unit/test_carrying_out.py::test_who_holds_a_node_is_named",
    "error-again": "unit/test_second_tries.py::"
    "test_the_same_error_on_another_node_ends_the_run_with_its_cause",
    "step-fails-again": "unit/test_second_tries.py::"
    "test_a_failure_that_repeats_is_tried_from_an_older_state_once_and_names_its_step",
    "no-snapshots": "unit/test_control_vaults.py::"
    "test_why_there_are_no_snapshots_is_announced_once_a_generation",
    "event-aside": "unit/test_set_aside.py::"
    "test_the_machine_is_as_if_it_had_not_been_told_and_the_run_goes_on",
    "run-taken": "unit/test_claim_watch.py::"
    "test_a_run_that_somebody_else_has_ends_though_nothing_is_trained",
    "journal-full": "unit/test_actors_journal_files.py::"
    "test_a_full_disk_holds_up_the_commits_and_no_training",
    "folder-gone": "unit/test_segments.py::"
    "test_a_start_on_another_machine_says_from_when_on_nothing_is_proven",
}


@pytest.mark.parametrize(("key", "seen", "code"), list(rows()))
def test_a_row_is_what_happens(tmp_path, key, seen, code):
    """issue 9, "It must show": input, what the user sees, exit code, what is lost."""
    if key in SHOWN:
        assert_there(SHOWN[key])
        return
    said = MADE[key](finished_run(tmp_path))
    assert said.code == code, said.text
    for line in seen:
        assert_says(said.text, line)


def assert_says(text, line):
    """Each piece between three dots, one after the other."""
    at = 0
    for piece in line.split("..."):
        found = text.find(piece, at)
        assert found >= 0, f"{piece!r} is not in {text!r}"
        at = found + len(piece)


def assert_there(test):
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert not name or name in names, test


def test_each_key_stands_in_the_table_once():
    keys = [key for key, _, _ in rows()]
    assert sorted(keys) == sorted({*MADE, *SHOWN})


def test_the_codes_of_the_table_are_those_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    (table,) = re.findall(r"\| exit code \| meaning \|\n(.*?)\n\n", readme, re.DOTALL)
    cells = (row.split("|")[1] for row in table.splitlines()[1:])
    known = {int(code) for cell in cells for code in re.findall(r"\d+", cell)}
    assert {code for _, _, code in rows()} <= known
