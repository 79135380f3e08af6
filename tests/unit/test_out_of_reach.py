"""A driver tells a controller that is busy from one that is gone, and knows a head that is gone."""

import os

import pytest

from remesh.actors.jobs.out_of_reach import GONE_LOOKS, GONE_LOOKS_ANSWERED, HeadWatch, WordsOfLife


class Time:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Head:
    """Is there or not, and counts who looks."""

    def __init__(self):
        self.clock, self.there, self.looks = Time(), True, 0
        self.watch = HeadWatch(self._is_there, self.clock)

    def _is_there(self):
        self.looks += 1
        return self.there

    def seconds(self, number, *, answered):
        """What the watch says after each of so many, in which it is asked four times."""
        said = []
        for _ in range(number):
            for _ in range(4):
                self.clock.now_s += 0.25
                found = self.watch.look(answered=answered)
            said.append(found)
        return said


@pytest.mark.parametrize(("answered", "limit"), [(False, GONE_LOOKS), (True, GONE_LOOKS_ANSWERED)])
def test_a_head_is_gone_when_nobody_has_been_at_its_address_for_a_few_looks(answered, limit):
    """security B3: Ray says so after a minute, and ends the process."""
    head = Head()
    assert not any(head.seconds(50, answered=answered))
    assert head.looks == 50
    head.there = False
    assert head.seconds(limit + 1, answered=answered) == [False] * (limit - 1) + [True] * 2
    assert head.watch.is_gone


def test_a_head_that_comes_back_was_not_gone():
    head = Head()
    for _ in range(5):
        head.there = False
        assert not any(head.seconds(GONE_LOOKS - 1, answered=False))
        head.there = True
        assert not any(head.seconds(1, answered=False))


def test_a_controller_is_waited_for_as_long_as_it_gives_signs_of_life(tmp_path):
    """control A16: one that read its journal for longer than 30 s had all of the run ended."""
    clock, word = Time(), tmp_path / "run.json"
    word.write_text("{}")
    signs = WordsOfLife(tmp_path, 30.0, clock)
    for beat in range(1, 100):
        os.utime(word, (beat, beat))
        clock.now_s += 29.0
        assert not signs.have_ceased()
    clock.now_s += 30.0
    assert signs.have_ceased()
