"""Rings and experts on hosts of their own: what dies is done without or replaced, no bit changes.

Each layout has four ranks, one a host, and is struck in one run and left alone in another; a
pipeline's bits are those of replicas alone, so it needs no other.
"""

import time
from dataclasses import dataclass

import pytest
from place import SHORT, SLOWLY, Place, until

from remesh.actors.history.journal_reading import read_history
from remesh.orchestrator.accounts.view import view_of

EVERY = 8
LOOK_S = 0.2
KILL = ("--kill", "worker@10")
EXPERTS = ("parallel.ep=2", "model.num_experts=4", "model.expert_width=48", "model.balanced=true")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`calm` is whose bits it has, `after` the mesh that is left once it was struck first.

    After step `crash_at`, if that is not 0, a host crashes too. `reason` is some of that which the
    second mesh has.
    """

    settings: tuple[str, ...]
    calm: str
    layout: str
    after: str
    strikes: tuple[str, ...] = KILL
    steps: int = 16
    crash_at: int = 0
    generations: int = 2
    lost: int = 0
    reason: str = ""


CASES = {
    "experts": Case(settings=EXPERTS, calm="experts", layout="dp=4 ep=2", after="dp=2 ep=2"),
    # A rank dies, another one stops for good, and a host crashes.
    "stages": Case(
        settings=(*EXPERTS, "parallel.pp=2", "elastic.pp=[1]", "checkpoint.snapshot_every=1"),
        calm="experts",
        layout="dp=2 pp=2 ep=2",
        after="dp=2 ep=2",
        strikes=("--kill", "worker@8", "--fault", "freeze@step=12,rank=1", *SLOWLY),
        steps=24,
        crash_at=15,
        generations=4,
        lost=24,
    ),
    "both": Case(
        settings=(*EXPERTS, "parallel.cp=2"),
        calm="both",
        layout="dp=2 cp=2 ep=2",
        after="dp=1 cp=2 ep=2",
        reason="from step 9 with the state of ",
    ),
}


class Runs:
    """Runs of the short job on four hosts of one worker each; those that nothing befalls once."""

    def __init__(self, hosts, root):
        self._hosts = hosts
        self._place = Place(root, hosts.environment(), hosts.prefix(root))
        self._root = root
        self._calm = {}

    def calm(self, name):
        """The losses of a case that is left alone."""
        if name not in self._calm:
            steps = max(case.steps for case in CASES.values() if case.calm == name)
            report = self._report(f"calm-{name}", steps, CASES[name].settings)
            self._calm[name] = report["losses"]
        return self._calm[name]

    def struck(self, name):
        case = CASES[name]
        return self._report(name, case.steps, case.settings, case.strikes, case.crash_at)

    def _report(self, name, steps, settings, strikes=(), crash_at=0):
        self._hosts.stand(4)
        all_of = (
            f"checkpoint.dir=runs/{name}", f"checkpoint.every={EVERY}", f"train.steps={steps}",
            "elastic.max_workers=4", *settings,
        )  # fmt: skip
        sets = [word for setting in all_of for word in ("--set", setting)]
        report = self._root / f"{name}.json"
        process = self._place.start(
            "run", SHORT, "--address", self._hosts.address, "--report", report, *sets, *strikes
        )
        if crash_at:
            until(lambda: self._reaches(crash_at, process, name), f"step {crash_at}")
            self._hosts.crash(self._hosts.up[-1])
        outcome = self._place.finish(process, report)
        assert outcome.code == 0, outcome.err + outcome.out
        return outcome.report

    def _reaches(self, step, process, name):
        time.sleep(LOOK_S)
        assert process.poll() is None, process.communicate()
        starts = read_history(self._root / "runs" / name).starts
        return bool(starts) and view_of(starts[-1].replay()).step >= step


@pytest.fixture(scope="module")
def runs(hosts, tmp_path_factory):
    return Runs(hosts, tmp_path_factory.mktemp("struck"))


@pytest.mark.parametrize("name", CASES)
def test_what_dies_changes_no_bit(runs, name):
    case = CASES[name]
    calm, struck = runs.calm(case.calm), runs.struck(name)
    first, second, *_ = lives = struck["generations"]
    assert first["layout"] == case.layout
    assert second["layout"] in (case.after, case.layout)  # a replacement may be there first
    assert case.reason in second["reason"]
    assert len(lives) >= case.generations
    assert max(life["lost_steps"] for life in lives) <= case.lost
    assert (struck["samples"]["lost"], struck["samples"]["repeated"]) == (0, 0)
    assert struck["losses"] == calm[: case.steps]
