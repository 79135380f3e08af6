import pytest

from remesh.orchestrator.job.kills import Kill, check_kills, parse_kill
from remesh.orchestrator.user_errors import UserError


def test_a_kill_names_its_target_and_the_step_that_begins():
    assert parse_kill("worker@20") == Kill(target="worker", step=20)
    assert parse_kill("node@1") == Kill(target="node", step=1)


@pytest.mark.parametrize("text", ["", "worker", "worker@", "disk@3", "@3", "worker 3", "Worker@3"])
def test_other_targets_are_refused_with_the_form(text):
    with pytest.raises(UserError, match=r"expected .*@"):
        parse_kill(text)


@pytest.mark.parametrize("step", ["0", "-1", "x", "1.5", "٣", " 3", "3 ", "1_0"])
def test_steps_are_counted_from_one(step):
    with pytest.raises(UserError, match="expected a step from 1"):
        parse_kill(f"worker@{step}")


def kills(*texts: str) -> list[Kill]:
    return [parse_kill(text) for text in texts]


def test_kills_that_can_happen_pass():
    check_kills(kills("worker@20", "node@40", "worker@80"), steps=80, nodes=2, address=None)
    check_kills(kills("worker@20"), steps=80, nodes=1, address="10.0.0.1:6379")
    check_kills([], steps=80, nodes=1, address=None)


def test_a_kill_after_the_last_step_is_refused():
    with pytest.raises(UserError, match=r"worker@81: the job ends at train.steps = 80"):
        check_kills(kills("worker@81"), steps=80, nodes=2, address=None)


def test_nodes_of_a_foreign_cluster_and_the_head_are_never_killed():
    with pytest.raises(UserError, match="refused with --address"):
        check_kills(kills("node@40"), steps=80, nodes=2, address="auto")
    with pytest.raises(UserError, match="--nodes 1 leaves 0 to kill, and 1 are named"):
        check_kills(kills("node@40"), steps=80, nodes=1, address=None)
    with pytest.raises(UserError, match="--nodes 2 leaves 1 to kill, and 2 are named"):
        check_kills(kills("node@4", "node@40"), steps=80, nodes=2, address=None)
