"""A real Prometheus scrapes a run before, during and after a recovery, a shrink and a restart."""

import os
import signal
import threading
import time
from contextlib import closing, contextmanager
from http.client import HTTPConnection

import pytest
from needed import program
from place import SHORT, SLOWLY, until
from scraper import Scraper
from tallied_drive import tallied

from remesh.actors.history.journal_files import Journal
from remesh.actors.history.replay import replayed
from remesh.actors.run.contact import ask
from remesh.actors.run.folder import RunFolder
from remesh.actors.serving.run_metrics import RunMetrics
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.job.tables.run_tables import MetricsTable

MOMENT_S = 1.0  # in which a run that waits for nobody would be over
CLIENT = ("127.0.0.9", 0)
PROMETHEUS = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}
SEQUENCES, SEQ_LEN = 12, 64  # of the short job's global batch


@pytest.fixture
def scraping(tmp_path):
    """Starts Prometheus on a discovery address; it ends with the test."""
    started = []

    def start(discovery):
        started.append(Scraper.start(program("prometheus"), tmp_path, discovery))
        return started[-1]

    yield start
    for scraper in started:
        scraper.close()


@contextmanager
def served(drive, tally, port=0):
    """The metrics of a controller that this test feeds with events, and their port."""
    said = []
    metrics = RunMetrics(drive.controller, "tiny", tally, threading.Lock())
    with metrics.serving(MetricsTable(port=port), "127.0.0.1", said.append):
        assert len(said) == 1
        yield int(said[0].removesuffix("/metrics").rpartition(":")[2])


def seen(scraper, expression, value):
    scraper.until(lambda: scraper.value(expression) == value, f"{expression} is {value}")


def holds(scraper, comparison):
    """Waits for it, since after a scrape that took too long there are no values at all."""
    scraper.until(lambda: scraper.series(comparison), comparison)


def has_ranks(scraper, ranks):
    scraper.until(lambda: scraper.ranks() == ranks, f"ranks {ranks}")


def test_series_go_and_counters_stay_through_a_recovery_a_shrink_and_a_restart(scraping):
    drive = tallied(10)
    with served(drive, drive.tally) as port:
        scraper = scraping(f"http://127.0.0.1:{port}/sd")
        seen(scraper, "remesh_step", 10)
        has_ranks(scraper, [0, 1, 2, 3])
        scraper.until(lambda: scraper.series('remesh_run_info{run="tiny"}'), "the run's name")
        (target,) = scraper.targets()
        assert (target["health"], target["lastError"]) == ("up", "")

        drive.lose(drive.members[0])
        seen(scraper, 'remesh_run_state{state="fencing"}', 1)
        has_ranks(scraper, [1, 2, 3])
        drive.park(10)
        drive.train(13)
        seen(scraper, "remesh_step", 13)
        seen(scraper, "remesh_world_size", 3)
        has_ranks(scraper, [0, 1, 2])
        seen(scraper, "remesh_recoveries_total", 1)

        drive.do(ev.NodeLost(node="b", cause="killed"))
        drive.park(13)
        drive.train(15)
        seen(scraper, "remesh_step", 15)
        has_ranks(scraper, [0])
        assert not scraper.series('remesh_node_slots{node="b"}')
        phases = "remesh_phase_seconds_total"
        before = scraper.until(lambda: scraper.series(phases), phases)

    journal = Journal(incarnation=1, options=drive.controller.options, lines=tuple(drive.lines))
    drive.tally = replayed([journal]).tally
    with served(drive, drive.tally, port):
        drive.steps(20)
        seen(scraper, "remesh_step", 20)
        seen(scraper, "remesh_tokens_total", 200)
        after = scraper.until(lambda: scraper.series(phases), phases)
        assert all(after[labels] >= seconds for labels, seconds in before.items())
        assert scraper.reset_counters() == {}
        assert scraper.unhealthy_rules() == []
    scraper.until(lambda: scraper.series("remesh_step") == {}, "all series have gone")


def test_a_real_run_is_scraped_before_during_and_after_a_recovery(cluster, cluster_place, scraping):
    run_dir = cluster_place.root / "runs" / "scraped"
    settings = (f"checkpoint.dir={run_dir}", "metrics.port=0", "train.steps=10000")
    process = cluster_place.start(
        "run", SHORT, "--address", cluster.address, *SLOWLY,
        *(f"--set={setting}" for setting in settings),
    )  # fmt: skip
    try:
        contact = until(RunFolder(run_dir).contact, "the controller is there")
        (group,) = until(lambda: ask(contact, "/sd"), "discovery answers")
        (target,) = group["targets"]
        scraper = scraping(f"http://{target}/sd")
        ended_well = watch_a_recovery(scraper, contact)
    except BaseException:
        process.kill()
        raise
    watch_the_end(process, target)
    outcome = cluster_place.finish(process)
    assert outcome.code == 130, outcome.err + outcome.out
    assert f"metrics are at http://{target}/metrics" in outcome.out
    assert ended_well
    scraper.until(lambda: scraper.series("remesh_step") == {}, "all series have gone")
    assert scraper.reset_counters() == {}
    rings_for_nobody_gone(scraper, outcome)


def watch_the_end(process, target):
    """user 13: another Prometheus, which comes seldom, is waited for as well."""
    page(target, **PROMETHEUS)
    process.send_signal(signal.SIGINT)
    stopped = b'remesh_run_state{run="short",state="stopped"} 1.0'
    until(lambda: stopped in page(target), "the page says that it has stopped")
    time.sleep(MOMENT_S)
    assert process.poll() is None
    assert stopped in page(target, **PROMETHEUS)


def page(target, **headers):
    """What is answered to a client at an address of its own; nothing once nobody is there."""
    host, _, port = target.rpartition(":")
    with closing(HTTPConnection(host, int(port), timeout=5, source_address=CLIENT)) as connection:
        try:
            connection.request("GET", "/metrics", headers=headers)
            return connection.getresponse().read()
        except OSError:
            return b""


def rings_for_nobody_gone(scraper, outcome):
    """user 13: the run stayed until its last state had been scraped, and so it is not missed."""
    assert "Prometheus is given" in outcome.out
    assert scraper.value('last_over_time(remesh_run_state{state="stopped"}[5m])') == 1
    below = "last_over_time(remesh_step[5m]) < on (run) last_over_time(remesh_target_step[5m])"
    assert scraper.series(below)
    (gone,) = [rule for rule in scraper.rules() if rule["name"] == "RemeshRunGone"]
    assert scraper.series(gone["query"]) == {}


def watch_a_recovery(scraper, contact):
    scraper.until(lambda: scraper.value("remesh_world_size") == 3, "a mesh of 3")
    holds(scraper, "remesh_step > 5")
    status = until(lambda: ask(contact, "/status"), "an answer")
    victim = next(worker for worker in status["workers"] if worker["rank"] == 2)
    os.kill(victim["pid"], signal.SIGKILL)
    seen(scraper, "remesh_recoveries_total", 1)
    seen(scraper, 'remesh_failures_total{cause="worker_died"}', 1)
    holds(scraper, "sum(remesh_recovery_seconds_total) > 0")
    not_filled_again = "and on (run) remesh_generation == 2"
    assert set(scraper.series(f"remesh_world_size {not_filled_again}").values()) <= {2}
    assert scraper.ranks(not_filled_again) in ([], [0, 1])
    step = until(lambda: ask(contact, "/status"), "an answer")["step"]
    holds(scraper, f"remesh_step > {step}")
    trained = {(("run", "short"),): SEQUENCES * SEQ_LEN}
    tokens = "remesh_tokens_total / remesh_steps_total"
    scraper.until(lambda: scraper.series(tokens) == trained, f"{tokens} is {trained}")
    holds(scraper, f"remesh_steps_total == remesh_step > {step}")
    holds(scraper, "remesh_lost_steps_total <= 1")
    assert scraper.reset_counters() == {}
    return scraper.unhealthy_rules() == []
