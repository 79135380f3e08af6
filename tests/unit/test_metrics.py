"""The table of metrics, and what a scrape shows of a run."""

import math
import re
import subprocess

import pytest
from control_values import records
from counted import growth, lines_run
from needed import program
from prometheus_client.parser import text_string_to_metric_families
from sized import scraped
from tallied_drive import TalliedDrive, scrape, tallied, through_everything

from remesh.actors.serving.metrics import TABLE, MetricRow, table
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words import events as ev


def series(drive):
    """The value of each series by its name and labels, without the label that all have."""
    found = {}
    for family in text_string_to_metric_families(scrape(drive).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("run") == "tiny"
            found[sample.name, *labels.values()] = sample.value
    return found


def shrunk():
    """Four ranks on two nodes, of which one has died: two ranks go on."""
    drive = tallied(10)
    drive.do(ev.NodeLost(node="b", cause="killed"))
    drive.park(10)
    return drive.train(12)


def test_a_name_that_is_there_twice_is_refused():
    row = MetricRow(name="remesh_step_duration_seconds", kind="histogram", help="Steps.")
    with pytest.raises(ValueError, match="registered twice: remesh_step_duration_seconds"):
        table(*TABLE, row)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_names_and_labels_follow_the_conventions(row):
    assert re.fullmatch(r"remesh_[a-z]+(_[a-z]+)*", row.name)
    assert row.name.endswith("_total") == (row.kind == "counter")
    assert ("seconds" in row.name) == bool(re.search(r"[Tt]ime |How long", row.help)), row.help
    assert row.help.endswith(".")
    assert set(row.labels) <= {
        *("version", "state", "axis", "rank", "node", "phase", "reason", "cause", "part"),
    }


def test_promtool_finds_nothing_to_complain_about():
    for drive in (TalliedDrive(), through_everything()):
        done = subprocess.run(
            [program("promtool"), "check", "metrics"],
            input=scrape(drive),
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_running_mesh_is_shown_as_it_is():
    shown = series(tallied(10))
    assert shown["remesh_run_info", "1.0"] == 1
    assert shown["remesh_run_state", "running"] == 1
    assert sum(v for (name, *_), v in shown.items() if name == "remesh_run_state") == 1
    assert shown["remesh_generation",] == 1
    assert shown["remesh_mesh_degree", "dp"] == shown["remesh_world_size",] == 4
    assert shown["remesh_mesh_degree", "tp"] == 1
    assert (shown["remesh_step",], shown["remesh_target_step",]) == (10, 80)
    assert shown["remesh_loss",] == shown["remesh_gradient_norm",] == 1.0
    assert shown["remesh_tokens_total",] == 100
    assert shown["remesh_step_duration_seconds_count",] == 10
    assert shown["remesh_workers", "member"] == 4
    assert shown["remesh_nodes", "used"] == 2


def test_what_is_gone_has_no_series():
    shown = series(shrunk())
    assert [key for key in shown if key[0] == "remesh_rank_info"] == [
        ("remesh_rank_info", "head", "0"),
        ("remesh_rank_info", "head", "1"),
    ]
    assert not [key for key in shown if "b" in key[1:]]
    assert shown["remesh_world_size",] == shown["remesh_mesh_degree", "dp"] == 2
    assert (shown["remesh_nodes", "used"], shown["remesh_nodes", "leaving"]) == (1, 0)
    assert shown["remesh_workers", "member"] == 2


def test_a_node_that_drains_is_shown_as_leaving_and_counts_as_no_failure():
    drive = tallied(10)
    drive.do(ev.NodeDraining(node="b", cause="preempted"))
    assert series(drive)["remesh_nodes", "leaving"] == 1
    drive.park(10, drained=True)
    drive.train(12)
    shown = series(drive)
    assert shown["remesh_world_size",] == 2
    assert shown["remesh_unproductive_seconds_total", "resize"] > 0
    assert shown["remesh_unproductive_seconds_total", "recovery"] == 0
    assert sum(v for (name, *_), v in shown.items() if name == "remesh_failures_total") == 0
    assert shown["remesh_recoveries_total",] == 0


def test_without_a_mesh_there_are_no_ranks_and_no_degrees():
    drive = tallied(10, nodes=(("head", 1),), max_dp=1)
    drive.lose(*drive.members)
    shown = series(drive)
    assert shown["remesh_run_state", "waiting"] == 1
    assert shown["remesh_world_size",] == shown["remesh_mesh_degree", "dp"] == 0
    assert not [key for key in shown if key[0] == "remesh_rank_info"]


def test_the_number_of_series_does_not_grow_with_what_has_happened():
    drive = tallied(1, max_failures=1000, steps=1000)
    before = len(series(drive))
    for _ in range(100):
        drive.lose(drive.members[0])
        drive.park(drive.state.step)
        drive.train(drive.state.step + 1)
        drive.ready()
        drive.park(drive.state.step, drained=True)
        drive.train(drive.state.step + 1)
    assert drive.state.last_generation > 200
    assert len(series(drive)) == before


def test_a_replayed_journal_shows_the_same_as_the_live_run():
    drive = through_everything()
    live = scrape(drive)
    drive.tally, drive.controller = Tally(), Controller(drive.controller.options)
    for event, now_s in journal.read(drive.lines):
        drive.controller.handle(event, now_s)
        drive.tally.note(event, now_s, drive.state)
    assert scrape(drive) == live


def test_losses_that_are_no_numbers_are_shown_as_such():
    drive = tallied(10)
    bad = records(11, 11, drive.now_s, loss=math.nan, grad_norm=math.inf, applied=False)
    drive.all(ev.StepsDone, workers=drive.members[:1], records=bad)
    shown = series(drive)
    assert math.isnan(shown["remesh_loss",])
    assert math.isinf(shown["remesh_gradient_norm",])
    assert shown["remesh_skipped_steps_total",] == 1


def test_a_rank_costs_a_scrape_the_same_among_thousands():
    assert growth(lambda num_nodes: lines_run(scrape, scraped(num_nodes)), 32, 256) < 1.5


def test_4096_ranks_are_shown():
    assert scrape(scraped(512)).count(b"remesh_rank_info{") == 4096
