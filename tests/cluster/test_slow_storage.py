"""A stop keeps the newest step that live ranks hold, however long their files take."""

import re
import signal

import pytest
from live_run import LiveRun
from place import SHORT, SLOWLY

from remesh.actors.run.folder import RunFolder

RANKS = 3
STILL_S = 8  # sixteen times the patience: as a minute is to most
AS_IT_TRAINS = ()
AS_IT_FORMS = ("kill@step=12", "freeze@generation=2,rank=0,operation=form,for=4")


@pytest.mark.parametrize(("phase", "faults"), [("running", AS_IT_TRAINS), ("forming", AS_IT_FORMS)])
def test_a_stop_waits_for_storage_that_stands_still(cluster, cluster_place, curve, phase, faults):
    folder = RunFolder(cluster_place.root / "runs" / f"still-{phase}")
    report = cluster_place.root / f"still-{phase}.json"
    still = [f"storage-stands-still@step=11,rank={rank},for={STILL_S}" for rank in range(RANKS)]
    ordered = [word for fault in (*still, *faults) for word in ("--fault", fault)]
    command = cluster_place.start(
        "run", SHORT, "--address", cluster.address, "--report", report, *ordered, *SLOWLY,
        "--set", f"checkpoint.dir={folder.path}", "--set", "checkpoint.every=1000",
        "--set", "train.steps=1000",
    )  # fmt: skip
    seen = LiveRun(command, folder).status(
        lambda status: status["step"] >= 11 and status["phase"] == phase, phase
    )
    command.send_signal(signal.SIGINT)
    outcome = cluster_place.finish(command, report)
    assert outcome.code == 130, outcome.err + outcome.out
    saved_at = int(re.search(r"saved at step (\d+)", outcome.out)[1])
    assert saved_at >= seen["step"]
    assert len(outcome.report["losses"]) == saved_at
    curve.assert_same_bits(outcome.report)
