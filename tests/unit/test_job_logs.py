import itertools

import pytest
from jobs_fake import FakeJobs

from remesh.actors.jobs.job_logs import GAP_LIMIT_S, follow, print_logs
from remesh.orchestrator.user_errors import UnreachableError

PREAMBLE = "Runtime env is setting up.\nRunning entrypoint for job a: sh -c x\n"
LINES = "".join(f"{n}\n" for n in range(1, 101))


def running(text=PREAMBLE + LINES):
    server = FakeJobs()
    server.submit("a", {})
    server.texts["a"] = text
    return server


def followed(server, **options):
    told = []
    job = follow(server, "a", told.append, wait=lambda _: None, **options)
    return "".join(told), job


def cut_at(*places):
    """A connection for each place, each cut off there, in pieces of seven characters."""
    return [
        [*(whole_of(place)[at : at + 7] for at in range(0, place, 7)), None] for place in places
    ]


def test_every_line_comes_once_however_often_the_connection_is_cut():
    server = running()
    places = (3, 50, 50, 200, 90, 300)
    server.pieces = cut_at(*places)
    waits = []

    def wait(_):
        waits.append(1)
        if len(waits) == len(places):
            server.end("a", "finished")

    server.logs = lambda _: server.texts["a"] if len(waits) >= len(places) else whole_of(120)
    told = []
    job = follow(server, "a", told.append, wait=wait)
    assert "".join(told) == LINES
    assert (job.code, len(told) > len(places)) == (0, True)


def whole_of(length):
    return (PREAMBLE + LINES)[:length]


def test_it_never_ends_before_the_job_has():
    server = running()
    server.pieces = [[whole_of(80)], [whole_of(150)], [whole_of(200)], []]
    waits = []

    def wait(_):
        waits.append(1)
        if len(waits) == 5:
            server.end("a", "failed", exit_code=2)

    server.logs = lambda _: PREAMBLE + LINES if len(waits) == 5 else ""
    told = []
    job = follow(server, "a", told.append, wait=wait)
    assert "".join(told) == LINES
    assert (job.code, len(waits)) == (2, 5)


def test_a_server_that_lets_nobody_follow_is_asked():
    server = running()
    server.pieces = [[None]]
    server.end("a", "stopped")
    assert followed(server)[0] == LINES


def test_a_head_that_stays_away_ends_it_as_unreachable():
    server = running()
    server.mute = 10_000
    clock = itertools.count(0.0, GAP_LIMIT_S / 10)
    with pytest.raises(UnreachableError):
        followed(server, clock=lambda: next(clock))


def test_a_head_that_comes_back_in_time_is_followed_on():
    server = running()
    server.mute = 5
    server.end("a", "finished")
    clock = itertools.count(0.0, GAP_LIMIT_S / 10)
    assert followed(server, clock=lambda: next(clock))[0] == LINES


def test_the_cluster_s_own_lines_are_left_out():
    told = []
    print_logs(running(), "a", told.append)
    print_logs(running(PREAMBLE[:40]), "a", told.append)
    assert "".join(told) == LINES
