"""A live run that is asked for other degrees, on hosts: the same processes go there and back."""

import json
import signal
import time

import pytest
from place import SHORT, SLOWLY, Place, until

from remesh.actors.history.journal_reading import read_history
from remesh.orchestrator.accounts.view import view_of

STEPS = 5000  # more than it comes to
LOOK_S = 0.2  # a look reads the journal from its start


class Story:
    """A run of two hosts, of one worker each, and what was seen of it."""

    def __init__(self, hosts, root):
        self.place = Place(root, hosts.environment(), hosts.prefix(root))
        self.report = root / "report.json"
        settings = (
            f"train.steps={STEPS}", "elastic.max_workers=2", "parallel.allow_cross_node_tp=true",
        )  # fmt: skip
        sets = [word for setting in settings for word in ("--set", setting)]
        self.process = self.place.start(
            "run", SHORT, "--address", hosts.address, *sets, "--report", self.report, *SLOWLY
        )

    def trains(self, layout, steps=3):
        """The run's view once a mesh of this layout has made some steps."""
        found = until(lambda: self._trains(layout, 0), f"{layout} trains")
        last = found.step + steps
        return until(lambda: self._trains(layout, last), f"{layout} reaches step {last}")

    def scale(self, layout):
        return self.place.remesh("scale", "runs/short", "--layout", layout)

    def status(self):
        """As the command tells it, on the head."""
        return json.loads(self.place.remesh("status", "runs/short", "--json").out)

    def _trains(self, layout, step):
        time.sleep(LOOK_S)
        assert self.process.poll() is None, self.process.communicate()
        starts = read_history(self.place.root / "runs" / "short").starts
        view = view_of(starts[-1].replay()) if starts else None
        there = view and view.phase == "running" and str(view.layout) == layout
        return view if there and view.step >= step else None


def pids(view):
    return {worker.worker: worker.pid for worker in view.workers}


@pytest.fixture
def story(hosts, tmp_path):
    hosts.stand(2)
    return Story(hosts, tmp_path)


def test_degrees_change_in_the_living_processes_and_come_back(story):
    before = story.trains("dp=2")
    refused = story.scale("tp=3")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("remesh: parallel.tp = 3 does not divide model.num_heads = 4")
    asked = story.scale("tp=2")
    assert asked.out.startswith("going over from dp=2 to tp=2 at the next step boundary; the bits")
    away = story.trains("tp=2")
    assert story.status()["asked_layout"] == "tp=2"
    story.scale("auto")
    back = story.trains("dp=2")
    assert pids(before) == pids(away) == pids(back)
    story.process.send_signal(signal.SIGINT)
    outcome = story.place.finish(story.process, story.report)
    assert outcome.code == 130, outcome.err + outcome.out
    lives, samples = outcome.report["generations"], outcome.report["samples"]
    assert [life["layout"] for life in lives] == ["dp=2", "dp=1 tp=2", "dp=2"]
    assert [life["source"] for life in lives[1:]] == ["live ranks"] * 2
    assert [life["lost_steps"] for life in lives] == [0, 0, 0]
    assert (samples["lost"], samples["repeated"]) == (0, 0)
