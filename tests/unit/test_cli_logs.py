"""`remesh logs` of a run or of a submission, and `remesh stacks` of a live run (user 12)."""

import os
from threading import Lock

import pytest
from control_drive import Drive
from control_values import options

from remesh.actors.controller.asked_stacks import MOST_WORKERS, AskedStacks
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.run_logs import follow_logs
from remesh.cli.main import main
from remesh.orchestrator.control.words.events import (
    RunStarted,
    StopRequested,
    WorkerErred,
    WorkerLost,
)
from remesh.orchestrator.user_errors import UserError


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    (tmp_path / "first" / "logs").mkdir(parents=True)
    writer = JournalWriter(tmp_path / "first", 1, options())
    writer.event(RunStarted(), 1.0)
    return tmp_path / "first"


def said(capsys, *args, code=0):
    assert main([*map(str, args)]) == code
    told = capsys.readouterr()
    return told.err if code else told.out


def test_one_log_is_printed_whole_and_another_name_has_the_choices(run_dir, capsys):
    (run_dir / "logs" / "worker-3.log").write_text("one\ntwo\n")
    (run_dir / "logs" / "mine.log").write_text("not the run's")
    assert said(capsys, "logs", "first", "--worker", "worker-3") == "one\ntwo\n"
    error = said(capsys, "logs", "first", "--worker", "worker-9", code=2)
    assert "there are logs of: worker-3\n" in error
    assert "mine" not in said(capsys, "logs", "first")


def test_a_run_whose_processes_were_silent_says_so(run_dir, capsys):
    assert "none of its processes has written anything" in said(capsys, "logs", run_dir)


def test_who_was_lost_is_told_with_its_log_or_the_traceback_of_its_event(run_dir, capsys):
    writer = JournalWriter(run_dir, 2, options())
    writer.event(RunStarted(), 1.0)
    for number, traceback in enumerate(("", "", "", "by its event\n", "")):
        lost = WorkerLost(worker=f"worker-{number}", cause="died", traceback=traceback)
        writer.event(lost, 2.0)
    writer.event(WorkerLost(worker="worker-3", cause="its process died"), 2.0)
    (run_dir / "logs" / "worker-2.log").write_text("line\n" * 30 + "by its log\n")
    told = said(capsys, "logs", run_dir)
    _, two, three, four, rest = told.split("\n\n")
    assert two.startswith("worker-2 was lost: died\nline\n")
    assert two.count("line") == 19
    assert two.endswith("by its log")
    assert three == "worker-3 was lost: died\nby its event"
    assert four == "worker-4 was lost: died\nit has written nothing"
    assert "3 of 5 that were lost" in rest


def test_who_ends_with_the_run_was_not_lost(run_dir, capsys):
    writer = JournalWriter(run_dir, 2, options())
    for event in (
        RunStarted(),
        WorkerErred(worker="worker-1", generation=0, error="no data", user_error=True),
        StopRequested(reason="enough"),
        WorkerLost(worker="worker-0", cause="its process died"),
    ):
        writer.event(event, 1.0)
    told = said(capsys, "logs", run_dir)
    assert "worker-1 was lost: no data" in told
    assert "worker-0" not in told


def test_a_log_is_not_read_through_a_link(run_dir, tmp_path, capsys):
    (tmp_path / "secret").write_text("secret")
    (run_dir / "logs" / "worker-3.log").symlink_to(tmp_path / "secret")
    assert "cannot be read" in said(capsys, "logs", run_dir, "--worker", "worker-3", code=2)


def test_what_is_neither_a_run_nor_has_a_cluster_is_refused_with_both_cures(run_dir, capsys):
    assert run_dir.is_dir()
    error = said(capsys, "logs", "second", code=2)
    assert "no such run here" in error
    assert "--address http://HOST:8265" in error
    assert "no such run" in said(capsys, "logs", "none/such", code=2)
    assert "the run's folder" not in said(capsys, "logs", "first")


def test_the_workers_of_a_submission_are_found_by_its_run(run_dir, capsys):
    address = ("--address", "http://127.0.0.1:1")
    assert run_dir.is_dir()
    error = said(capsys, "logs", "second", "--worker", "worker-3", *address, code=2)
    assert "give that folder or the job file" in error
    assert "--driver: give the id" in said(capsys, "logs", "--driver", *address, code=2)


def test_following_passes_on_whole_lines_once_to_the_end(run_dir):
    log = run_dir / "logs" / "worker-3.log"
    log.write_text("one\n")
    turns = iter(["two\nhal", "f\n" + "x" * 600 + "\n", None, "last\n", "", ""])
    got = []

    def wait(_):
        with log.open("a") as file:
            if (more := next(turns)) is not None:
                file.write(more)
            else:  # cut meanwhile: its end stays
                os.truncate(log, 0)
                file.write("x" * 600 + "\n")

    live = iter([True, False])
    follow_logs(
        run_dir, None, lambda who, text: got.append((who, text)), wait=wait,
        is_live=lambda _: next(live),
    )  # fmt: skip
    assert "".join(text for _, text in got) == "one\ntwo\nhalf\n" + "x" * 600 + "\nlast\n"
    assert {who for who, _ in got} == {"worker-3"}


class Agents:
    def __init__(self):
        self.asked = {}

    def ask(self, workers, limit_s):
        assert limit_s > 0
        self.asked = {node: list(names) for node, names in workers.items()}
        return {name: f"stands in {name}\n" for names in workers.values() for name in names[:-1]}


@pytest.fixture
def drive():
    drive = Drive()
    drive.ready()
    drive.train(2)
    return drive


def test_stacks_are_asked_of_agents_in_the_order_of_ranks(drive):
    agents = Agents()
    asked = AskedStacks(drive.controller, Lock(), agents.ask)
    text = asked.ask({})["text"]
    members = sorted(drive.controller.state.current.members, key=lambda member: member.rank)
    heads = [line for line in text.splitlines() if line.startswith("-- ")]
    assert heads == [f"-- {m.worker}, rank {m.rank}, on {m.node} --" for m in members]
    assert sum(map(len, agents.asked.values())) == len(members) <= MOST_WORKERS
    assert text.count("stands in") == len(members) - len(agents.asked)
    assert text.count("did not answer within 8 s") == len(agents.asked)


def test_stacks_of_one_worker_and_of_none(drive):
    agents = Agents()
    asked = AskedStacks(drive.controller, Lock(), agents.ask)
    one = drive.controller.state.current.members[0]
    asked.ask({"worker": one.worker})
    assert agents.asked == {one.node: [one.worker]}
    with pytest.raises(UserError, match=f"no worker-999 now; its workers are: .*{one.worker}"):
        asked.ask({"worker": "worker-999"})
