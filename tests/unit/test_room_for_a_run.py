"""Runs for which there is no room are refused before anything starts, tight ones are warned of."""

from pathlib import Path

import pytest

from remesh.actors.cluster.this_machine import (
    _left_to_group,
    check_metrics_host,
    this_machine,
)
from remesh.cli.main import main
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.plan.fitting import (
    Machine,
    check_machine,
    check_nodes,
    checkpoint_bytes,
    memory_of,
    needed_bytes,
)
from remesh.orchestrator.plan.planner import NodeRoom, ladder_of
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.memory.rank_sizes import num_parameters
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
GB = 10**9
LARGE = Machine(processors=64, free_bytes=100 * GB, disk_bytes=100 * GB, shared_bytes=100 * GB)


def checked(*overrides, nodes=2, places=2, **machine):
    job = load_job(TINY, overrides)
    room = NodeRoom(nodes=nodes, places=places)
    ladder = ladder_of(job).within(room.units)
    has = {name: getattr(LARGE, name) for name in Machine.__slots__} | machine
    return check_machine(job, ladder, room, Machine(**has))


def refused(*overrides, **more):
    with pytest.raises(UserError) as caught:
        checked(*overrides, **more)
    return str(caught.value)


def test_a_machine_that_is_large_enough_needs_no_word():
    assert checked() == ()


def test_a_model_for_which_no_mesh_has_room_is_refused_with_its_parts():
    """user 10"""
    said = refused("model.width=1048576")
    assert said.startswith("a rank would need 651 TB: gradients 229 TB, saving 211 TB, moments 141")
    assert "; this machine has 100 GB free for 1 worker and 2 nodes; " in said
    assert said.endswith(
        "lower model.width or model.num_layers, or raise parallel.tp, parallel.pp or zero.stage"
    )
    said = refused("train.seq_len=1048576", free_bytes=80 * GB)
    assert "activations 95 GB" in said
    assert said.endswith('or set train.recompute = "full"')


def test_following_the_advice_makes_room():
    """user 10: what the refusals name makes the largest part smaller."""
    for before, after in (
        ("model.width=1048576", "zero.stage=3"),
        ("train.seq_len=1048576", "train.recompute=full"),
        ("train.seq_len=1048576", "train.microbatch=1"),
    ):
        jobs = [load_job(TINY, words) for words in ([before], [before, after])]
        large, small = (needed_bytes(memory_of(job, ladder_of(job).highest)) for job in jobs)
        assert small < 0.8 * large


def test_a_mesh_that_is_too_large_is_warned_of_with_the_one_that_fits():
    """user 10"""
    (said,) = checked(free_bytes=1700 * 10**6)
    assert said.startswith("dp=4 needs about ")
    assert said.endswith("the largest mesh that fits is dp=2: set elastic.max_workers = 2")
    assert checked("elastic.max_workers=2", free_bytes=1700 * 10**6) == ()


@pytest.mark.parametrize(
    ("overrides", "more", "said"),
    [
        (["train.threads=1024"], {}, "train.threads = 1024 for 5 workers on 2 processors; use at"),
        (["elastic.spares=9999"], {}, "2 nodes with 10,003 workers on 2 processors: at most 64"),
        ([], {"nodes": 64, "places": 64}, "64 nodes with 5 workers on 2 processors: at most 64"),
    ],
)
def test_more_processes_than_any_machine_starts_are_refused(overrides, more, said):
    """user 10"""
    assert refused(*overrides, processors=2, **more).startswith(said)


def test_more_workers_than_processors_are_a_warning():
    (said,) = checked(processors=2)
    assert said.startswith("4 workers on 2 processors: they take turns")
    (said,) = checked("train.threads=2", processors=4)
    assert said.startswith("4 workers of 2 threads each on 4 processors")


def test_a_checkpoint_that_does_not_fit_is_refused_and_several_are_warned_of():
    """user 10: one checkpoint is 12 bytes a parameter."""
    size = checkpoint_bytes(load_job(TINY))
    assert size == 12 * 869_504
    assert refused(disk_bytes=size - 1).startswith("a checkpoint has 10 MB and runs/tiny has 10 MB")
    (said,) = checked(disk_bytes=2 * size)
    assert said.startswith(
        "4 checkpoints of 10 MB each have 42 MB together, and runs/tiny has 21 M"
    )
    assert checked("checkpoint.every=40", disk_bytes=2 * size) == ()


def test_snapshots_that_do_not_fit_into_shared_memory_are_a_warning():
    (said,) = checked("zero.stage=3", shared_bytes=10**6)
    assert said.startswith("snapshots take up to ")
    assert checked("zero.stage=3", "checkpoint.snapshot_every=0", shared_bytes=10**6) == ()
    assert checked(shared_bytes=0) == ()


def test_what_is_not_known_of_a_machine_is_not_guessed():
    assert checked("train.seq_len=1048576", free_bytes=None) == ()
    assert checked(disk_bytes=None, shared_bytes=None) == ()


def test_nodes_of_a_cluster_are_asked_for_the_memory_of_a_rank():
    """user 10"""
    job = load_job(TINY)
    with pytest.raises(UserError, match=r"^a rank would need .*; the largest node .* has 200 MB; "):
        check_nodes(job, ladder_of(job), [10**8, 2 * 10**8])
    check_nodes(job, ladder_of(job), [10**8, GB])
    check_nodes(job, ladder_of(job), [])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_parameters_are_counted_as_they_are_made(tied, norm):
    model = ModelConfig(
        num_layers=3, width=24, num_heads=4, num_kv_heads=2, ffn_width=40, vocab_size=61,
        seq_len=16, tied=tied, norm=norm, bias=True, qk_norm=True, positions="learned",
    )  # fmt: skip
    whole = sum(
        shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in parameter_shapes(model).values()
    )
    assert num_parameters(model) == whole


def test_this_machine_is_known(tmp_path):
    job = load_job(TINY, [f"checkpoint.dir={tmp_path}/not/there"])
    found = this_machine(job)
    assert found.processors >= 1
    assert min(found.free_bytes, found.disk_bytes, found.shared_bytes) > 0
    remote = load_job(TINY, ["checkpoint.url=s3://bucket/x"])
    assert this_machine(remote).disk_bytes is None


GROUPS = """\
4:memory:/job/rank
1:name=systemd:/
0::/job/rank
"""


def a_group(folder, limit, used, cached, names=("memory.max", "memory.current", "inactive_file")):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{names[2]} {cached}\n")


def left_to_group(tmp_path, groups=GROUPS):
    (tmp_path / "groups").write_text(groups)
    return _left_to_group(tmp_path / "mounted", tmp_path / "groups")


def test_a_process_may_take_what_the_tightest_group_around_it_leaves(tmp_path):
    """That of a job within one of a node, say; pages that were read give way."""
    mounted = tmp_path / "mounted"
    assert left_to_group(tmp_path) is None
    a_group(mounted / "job" / "rank", "max", 500, 0)
    assert left_to_group(tmp_path) is None
    a_group(mounted / "job", 1000, 800, 300)
    assert left_to_group(tmp_path) == 500
    a_group(mounted, 900, 850, 0)  # as a container sees its own
    assert left_to_group(tmp_path) == 50
    a_group(mounted, 900, 950, 10)
    assert left_to_group(tmp_path) == 0
    assert left_to_group(tmp_path, "something else\n") is None


def test_so_it_may_where_groups_are_of_the_older_kind(tmp_path):
    older = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    a_group(tmp_path / "mounted" / "memory" / "job", 1000, 800, 100, older)
    assert left_to_group(tmp_path) == 300
    assert left_to_group(tmp_path, "4:cpu,memory:/elsewhere\n0::/job\n") is None
    a_group(tmp_path / "mounted" / "memory", 1000, 900, 0, older)
    assert left_to_group(tmp_path, "4:cpu,memory:/elsewhere\n0::/job\n") == 100


def test_metrics_are_at_an_address_of_this_machine():
    """user 1.1: metrics.host; one that is not served is not looked at."""
    check_metrics_host(load_job(TINY, ["metrics.port=0"]))
    check_metrics_host(load_job(TINY, ["metrics.host=8.8.8.8"]))
    with pytest.raises(UserError, match=r"^metrics.host = 8.8.8.8 is no address of this machine"):
        check_metrics_host(load_job(TINY, ["metrics.port=0", "metrics.host=8.8.8.8"]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "model.width=1048576"], "a rank would need"),
        (["--nodes", "64", "--set", "elastic.spares=65536"], "processes start in time"),
        (["--set", "metrics.port=0", "--set", "metrics.host=8.8.8.8"], "metrics.host"),
    ],
)
def test_the_command_refuses_before_it_starts_anything(
    arguments, said, capsys, tmp_path, monkeypatch
):
    """user 10: one line, code 2, no dataset and no cluster."""
    monkeypatch.chdir(tmp_path)
    no_text = ["--set", f"data.source={tmp_path}/none"]  # so that nothing ever starts here
    assert main(["run", str(TINY), *no_text, *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
