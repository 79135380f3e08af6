"""The metrics of a run outlast it until each Prometheus that reads them knows how it ended."""

import threading
import urllib.request
from contextlib import contextmanager

import pytest
from tallied_drive import tallied
from waiting import PATIENCE_S

from remesh.actors.serving.run_metrics import RunMetrics
from remesh.actors.serving.scrapes import LATE, MOST_CLIENTS, MOST_S, Scrapes
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.job.tables.run_tables import MetricsTable

PROMETHEUS = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}
STOPPED = b'remesh_run_state{run="tiny",state="stopped"} 1.0'


class Served:
    """The metrics of a run that this test drives, at a port of their own."""

    def __init__(self, metrics, drive, url):
        self.metrics = metrics
        self.url = url
        self.waits = 0
        self.pages = []
        self._drive = drive

    def read(self, **headers):
        request = urllib.request.Request(self.url, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=PATIENCE_S) as answer:
            self.pages.append(answer.read())

    def stop(self):
        self._drive.do(ev.StopRequested(reason="enough"))
        self._drive.park(10, drained=True)
        self._drive.save(10)
        self._drive.commit(10)
        self.metrics.note(ev.Tick(), self._drive.now_s)

    def scraped_while_it_waits(self, _seconds):
        self.waits += 1
        assert self.waits < 3
        self.read(**PROMETHEUS)


@pytest.fixture
def served():
    with opened() as found:
        yield found


@contextmanager
def opened():
    drive, said = tallied(10), []
    metrics = RunMetrics(drive.controller, "tiny", drive.tally, threading.Lock())
    with metrics.serving(MetricsTable(port=0), "127.0.0.1", said.append):
        yield Served(metrics, drive, said[0].removeprefix("metrics are at "))


def test_prometheus_is_waited_for_until_it_has_read_the_last_state(served):
    """user 13: else nothing tells a run that was stopped from one whose controller died."""
    served.read(**PROMETHEUS)
    served.stop()
    assert served.metrics.awaited_s() > 0
    served.metrics.outlast(served.scraped_while_it_waits)
    assert served.waits == 1
    assert STOPPED not in served.pages[0]
    assert STOPPED in served.pages[1]
    served.metrics.outlast(served.scraped_while_it_waits)
    assert served.waits == 1


def test_nobody_is_waited_for_who_is_not_prometheus_or_knows_already(served):
    """user 13: a person who looks at the page reads it once."""
    served.read()
    served.stop()
    served.metrics.outlast(served.scraped_while_it_waits)
    assert served.waits == 0
    served.read(**PROMETHEUS)
    served.metrics.outlast(served.scraped_while_it_waits)
    assert served.waits == 0


def test_a_run_that_is_cut_off_waits_for_nobody(served):
    """user 13: it has no last state to tell."""
    served.read(**PROMETHEUS)
    served.metrics.outlast(served.scraped_while_it_waits)
    assert served.waits == 0


def scrape(scrapes, client, asked_s, line=b"X-Prometheus-Scrape-Timeout-Seconds: 10"):
    scrapes.note(client, b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n", asked_s)


def test_each_prometheus_of_a_pair_is_waited_for_by_its_own_pace():
    """user 13: each of them would page."""
    scrapes = Scrapes()
    for moment_s in (0.0, 10.0):
        scrape(scrapes, "10.0.0.1", moment_s)
        scrape(scrapes, "10.0.0.2", 2 * moment_s)
    assert scrapes.awaited_s(21.0, 21.0) == 20.0 + LATE * 20.0 - 21.0
    scrape(scrapes, "10.0.0.2", 22.0)
    assert scrapes.awaited_s(21.0, 22.0) == 10.0 + LATE * 10.0 - 22.0
    assert scrapes.awaited_s(21.0, 26.0) == 0.0
    scrape(scrapes, "10.0.0.1", 23.0)
    assert scrapes.awaited_s(21.0, 23.0) == 0.0


def test_one_that_came_once_or_seldom_is_waited_for_as_long_as_the_slowest_does():
    scrapes = Scrapes()
    scrape(scrapes, "10.0.0.1", 5.0)
    assert scrapes.awaited_s(6.0, 5.0) == LATE * MOST_S
    scrape(scrapes, "10.0.0.1", 5000.0)
    assert scrapes.awaited_s(5001.0, 5000.0) == LATE * MOST_S


def test_requests_of_others_and_for_other_pages_are_no_scrapes():
    scrapes = Scrapes()
    scrape(scrapes, "10.0.0.1", 5.0, line=b"User-Agent: curl/8")
    scrapes.note("10.0.0.1", b"GET /sd HTTP/1.1\r\nX-Prometheus-Scrape-Timeout-Seconds: 1\r\n", 5.0)
    scrapes.note("10.0.0.1", b"\xff" * 100, 5.0)
    assert scrapes.awaited_s(6.0, 5.0) == 0.0
    scrape(scrapes, "10.0.0.1", 5.0, line=b"x-prometheus-scrape-timeout-seconds: 1")
    assert scrapes.awaited_s(6.0, 5.0) > 0.0


def test_many_clients_are_forgotten_the_oldest_first():
    scrapes = Scrapes()
    for number in range(MOST_CLIENTS + 1):
        scrape(scrapes, f"10.0.1.{number}", float(number))
    assert len(scrapes._seen) == MOST_CLIENTS
    assert "10.0.1.0" not in scrapes._seen
