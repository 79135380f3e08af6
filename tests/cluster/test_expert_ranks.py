"""Experts on two hosts each: a worker dies, whole blocks of replicas go on, and no bit changes."""

import pytest
from place import SHORT, Place

STEPS, EVERY = 24, 8


@pytest.fixture(scope="module")
def train(hosts, tmp_path_factory):
    """The report of a run whose replicas share experts two by two, on four hosts of one worker."""
    root = tmp_path_factory.mktemp("experts")
    place = Place(root, hosts.environment(), hosts.prefix(root))

    def train(name, *words):
        hosts.stand(4)
        settings = (
            f"checkpoint.dir=runs/{name}", f"checkpoint.every={EVERY}", f"train.steps={STEPS}",
            "elastic.max_workers=4", "parallel.ep=2", "model.num_experts=4",
            "model.expert_width=48", "model.balanced=true",
        )  # fmt: skip
        sets = [word for setting in settings for word in ("--set", setting)]
        outcome = place.run(SHORT, "--address", hosts.address, *sets, *words)
        assert outcome.code == 0, outcome.err + outcome.out
        return outcome.report

    return train


def test_a_killed_rank_with_experts_leaves_whole_blocks_and_changes_no_bit(train):
    undisturbed, killed = train("undisturbed"), train("killed", "--kill", "worker@13")
    first, second = killed["generations"][:2]
    assert first["layout"] == "dp=4 ep=2"
    assert second["layout"] in ("dp=2 ep=2", "dp=4 ep=2")  # a replacement may be there first
    assert (first["lost_steps"], second["lost_steps"]) == (0, 0)
    assert (killed["samples"]["lost"], killed["samples"]["repeated"]) == (0, 0)
    assert killed["losses"] == undisturbed["losses"]
