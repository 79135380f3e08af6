"""Sequences on two hosts each: a worker dies, its ring is formed anew, and no bit changes."""

import pytest
from place import SHORT, Place

STEPS, EVERY = 24, 8


@pytest.fixture(scope="module")
def train(hosts, tmp_path_factory):
    """The report of a run of rings of two, on four hosts of one worker each."""
    root = tmp_path_factory.mktemp("rings")
    place = Place(root, hosts.environment(), hosts.prefix(root))

    def train(name, *words):
        hosts.stand(4)
        settings = (
            f"checkpoint.dir=runs/{name}", f"checkpoint.every={EVERY}", f"train.steps={STEPS}",
            "elastic.max_workers=4", "parallel.cp=2",
        )  # fmt: skip
        sets = [word for setting in settings for word in ("--set", setting)]
        outcome = place.run(SHORT, "--address", hosts.address, *sets, *words)
        assert outcome.code == 0, outcome.err + outcome.out
        return outcome.report

    return train


def test_a_killed_rank_of_a_ring_changes_no_bit(train):
    undisturbed, killed = train("undisturbed"), train("killed", "--kill", "worker@13")
    first, second = killed["generations"][:2]
    assert first["layout"] == "dp=2 cp=2"
    assert second["layout"] in ("dp=1 cp=2", "dp=2 cp=2")  # a replacement may be there first
    assert (first["lost_steps"], second["lost_steps"]) == (0, 0)
    assert "from step 12 with the state of " in second["reason"]
    assert (killed["samples"]["lost"], killed["samples"]["repeated"]) == (0, 0)
    assert killed["losses"] == undisturbed["losses"]
