"""What an agent makes of processes that wait: how nice they are, and when it takes none."""

import os
import pickle
import select
import socket
from pathlib import Path

import pytest
from forked import forked

from remesh.actors.agent.forker import Forker
from remesh.actors.cluster.warm_start import EARLY, NICENESS, _open, be_nice_enough

NICEST = 19
NOBODY = 65534  # a user


@pytest.mark.parametrize(("told", "nicer"), [(5, 5), (-5, 0), (None, 0)])
def test_ranks_are_as_nice_as_told_or_as_their_user_has_wished(told, nicer):
    before = min(os.getpriority(os.PRIO_PROCESS, 0) + 7, NICEST - 5)

    def found():
        os.setpriority(os.PRIO_PROCESS, 0, before)
        if os.geteuid() == 0:
            os.setresuid(NOBODY, NOBODY, NOBODY)  # who could not take it back
        be_nice_enough({} if told is None else {NICENESS: str(before + told)})
        return os.getpriority(os.PRIO_PROCESS, 0)

    assert forked(found) == before + nicer


class Door:
    """Which names of doors are there when it begins to answer."""

    def __init__(self, folder):
        self._folder = folder
        self.found = None

    def bind(self, name):
        Path(name).touch()

    def listen(self, _most):
        self.found = doors(self._folder)


def doors(folder):
    return [place.name for place in folder.glob("n0.warm.*")]


def test_no_door_is_found_before_it_answers(tmp_path):
    """Who came then would take it from all who come later, and have nobody."""
    door = Door(tmp_path)
    _open(door, str(tmp_path / "n0.warm"), 7)
    assert (door.found, doors(tmp_path)) == ([], ["n0.warm.7"])


class Waiting:
    """Processes that wait at a node and end as soon as they are taken on, one after the other."""

    def __init__(self, place):
        self._place = place
        self.taken = 0
        self.waits()

    def waits(self):
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(f"{self._place}.{os.getpid()}")
        self._door.listen(1)

    def end_if_taken(self):
        if not select.select([self._door], [], [], 0)[0]:
            return False
        self._door.accept()[0].close()
        self._door.close()
        self.taken += 1
        self.waits()
        return True

    def close(self):
        self._door.close()


class Unharmed(Forker):
    """It ends nobody of those who wait: they are this process."""

    def news(self, living):
        if self._warm and self._warm.pid == os.getpid():
            self._warm = Gone()
        return super().news(living)


class Gone:
    pid = 0

    def kill(self):
        pass

    def poll(self):
        return 0


def test_once_two_that_waited_have_failed_an_agent_starts_one_of_its_own(tmp_path):
    place = str(tmp_path / "n0.warm")
    waiting = Waiting(place)
    forker = Unharmed(pickle.dumps("no spec"), {**os.environ, EARLY: place})
    forker.start()
    while waiting.end_if_taken():
        forker.news(tuple)
    assert waiting.taken == 2
    assert forker.warm_pid not in (0, os.getpid())
    assert Path(f"/proc/{forker.warm_pid}").exists()
    waiting.close()
    forker._warm.kill()
    forker.end(60)
