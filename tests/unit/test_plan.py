from pathlib import Path

import pytest

from remesh.data.manifest import Manifest
from remesh.orchestrator.job.dataset import check_dataset
from remesh.orchestrator.job.job import Job, load_job
from remesh.orchestrator.job.tables import ModelTable, ParallelTable, TrainTable
from remesh.orchestrator.plan.legality import degree_problems
from remesh.orchestrator.plan.planner import plan
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.layout import Layout

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def tiny(*overrides: str) -> Job:
    return load_job(TINY, overrides)


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        tiny(*overrides)
    return str(caught.value)


def batch(global_batch: int, microbatch: int, dp: int) -> list[str]:
    return [
        f"train.global_batch={global_batch}",
        f"train.microbatch={microbatch}",
        f"parallel.dp={dp}",
        "elastic.max_workers=8",
    ]


def test_a_batch_that_multiplies_out_is_dealt_evenly():
    found = plan(tiny(*batch(256, 4, 8)), 8)
    assert found.layout == Layout(dp=8)
    assert {leaves * found.microbatches_per_leaf for leaves in found.leaves} == {8}
    assert found.efficiency == 1.0


def test_a_batch_that_does_not_multiply_out_is_refused_with_all_numbers():
    assert "250 is not a multiple of train.microbatch = 4; use 248 or 252" in refusal(
        *batch(250, 4, 8)
    )
    few = refusal(*batch(32, 8, 8))
    assert "32 in microbatches of 8 makes 4, too few for parallel.dp = 8 replicas" in few
    assert "use at most 4 replicas, or a train.microbatch of at most 4" in few
    assert "makes 12, which parallel.dp = 8 does not divide; use one of 1, 2, 3, 4, 6, 12" in (
        refusal(*batch(24, 2, 8))
    )


def test_a_microbatch_larger_than_the_batch_is_refused_with_what_works():
    assert "use 8, or another microbatch" in refusal(*batch(4, 8, 1))


def test_more_workers_than_microbatches_are_refused_by_the_key_that_says_so():
    assert "too few for elastic.max_workers = 13" in refusal("elastic.max_workers=13")
    assert "too few for parallel.dp = 13" in refusal("parallel.dp=13", "elastic.max_workers=13")


@pytest.mark.parametrize("workers", range(1, 9))
def test_every_leaf_is_dealt_at_any_number_of_workers(workers):
    job = tiny("elastic.max_workers=8")
    found = plan(job, workers)
    assert found.layout.world_size == workers == len(found.leaves)
    assert sum(found.leaves) * found.microbatches_per_leaf == job.num_microbatches
    assert min(found.leaves) >= 1


def test_the_plan_says_who_stays_spare_and_what_is_missing():
    assert plan(tiny(), 4).reasons == ("dp=4: 12 leaves of 1 microbatch, 3 each, 100% efficient",)
    assert "2 workers stay spare: the job has at most 4 replicas" in plan(tiny(), 6).reasons
    assert "2 replicas fewer than the job would use" in plan(tiny(), 2).reasons


def test_too_few_workers_are_refused_with_both_numbers():
    with pytest.raises(UserError, match=r"2 workers are fewer than elastic.min_workers = 3"):
        plan(tiny("elastic.min_workers=3"), 2)
    assert "elastic.min_workers = 5 is above elastic.max_workers = 4" in refusal(
        "elastic.min_workers=5"
    )
    assert "parallel.dp = 8 needs 8 workers and elastic.max_workers = 4" in refusal("parallel.dp=8")


def model(num_heads: int, num_kv_heads: int, ffn_width: int = 448) -> ModelTable:
    return ModelTable(
        num_layers=4,
        width=num_heads * 8,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        ffn_width=ffn_width,
    )


TRAIN = TrainTable(steps=1, global_batch=8, microbatch=1, seq_len=96)


def problems(table: ModelTable, **degrees: int) -> list[str]:
    return list(degree_problems(ParallelTable(**degrees), table, TRAIN))


def test_a_degree_that_does_not_fit_lists_those_that_would():
    assert problems(model(28, 28), tp=8)[0] == (
        "parallel.tp = 8 does not divide model.num_heads = 28; use one of 1, 2, 4, 7, 14, 28"
    )
    assert problems(model(28, 4), tp=8)[0] == (
        "parallel.tp = 8 does not divide model.num_heads = 28; use one of 1, 2, 4, 28"
    )
    assert problems(model(12, 4, 48), tp=6)[0] == (
        "parallel.tp = 6 neither divides model.num_kv_heads = 4 nor is a multiple of it; "
        "use one of 1, 2, 4, 12"
    )
    assert problems(model(8, 8, 36), tp=8) == [
        "parallel.tp = 8 does not divide model.ffn_width = 36; use one of 1, 2, 4"
    ]
    assert problems(model(4, 4), pp=5)[0].endswith("model.num_layers = 4; use at most 4")
    assert problems(model(4, 4)) == []


def test_tokens_are_shared_in_whole_numbers_and_only_by_a_group():
    assert problems(model(64, 64), tp=64, sequence=True)[0] == (
        "parallel.tp = 64 does not divide train.seq_len = 96, which parallel.sequence = true "
        "shares out; use one of 1, 2, 4, 8, 16, 32"
    )
    assert problems(model(4, 4), tp=4, sequence=True) == []
    assert "parallel.tp = 1; set parallel.tp" in problems(model(4, 4), sequence=True)[0]


def test_more_ranks_than_kv_heads_replicate_them_and_the_plan_says_so():
    assert problems(model(8, 4), tp=8) == []
    job = tiny("model.num_kv_heads=2", "parallel.tp=4", "elastic.max_workers=8")
    assert (
        "each of the 2 kv heads is replicated on 2 ranks of a tp group: parallel.tp = 4 is more "
        "than there are"
    ) in plan(job, 4).reasons


@pytest.mark.parametrize(
    ("key", "technique"),
    [
        ("pp=2", "pipeline parallelism"),
        ("cp=2", "context parallelism"),
        ("ep=2", "expert parallelism"),
    ],
)
def test_techniques_that_are_not_there_are_refused_by_name(key, technique):
    text = refusal(f"parallel.{key}")
    assert f"parallel.{key.replace('=', ' = ')}: {technique}" in text
    assert "not available in this version" in text


@pytest.mark.parametrize(
    ("workers", "layout", "spare"), [(2, "tp=2", 0), (5, "dp=2 tp=2", 1), (9, "dp=4 tp=2", 1)]
)
def test_workers_make_up_whole_tp_groups_and_the_rest_is_spare(workers, layout, spare):
    found = plan(tiny("parallel.tp=2", "elastic.max_workers=8"), workers)
    assert str(found.layout) == layout
    assert found.layout.world_size == workers - spare
    assert any("spare" in reason for reason in found.reasons) == bool(spare)


def test_replicas_come_in_whole_zero_groups_if_they_are_set():
    hybrid = ["zero.stage=3", "zero.group=2", "parallel.tp=2", "elastic.max_workers=12"]
    found = plan(tiny(*hybrid), 11)
    assert (found.layout, found.shard_size) == (Layout(dp=4, tp=2), 2)
    spare = "3 workers stay spare: a mesh has whole groups of 2 replicas, 4 workers at a time"
    assert spare in found.reasons
    assert "ZeRO stage 3: each 2 replicas share one copy" in found.reasons
    with pytest.raises(UserError, match="3 workers are fewer than the 4 of the smallest mesh with"):
        plan(tiny(*hybrid), 3)
    assert plan(tiny("zero.stage=1"), 3).shard_size == 3
    assert plan(tiny(), 3).shard_size == 1


def test_degrees_that_no_number_of_workers_fits_are_refused_with_both_numbers():
    assert "parallel.tp = 4 in groups of zero.group = 2 replicas needs 8 workers and elastic" in (
        refusal("parallel.tp=4", "zero.stage=1", "zero.group=2")
    )
    assert "zero.group = 3 does not divide parallel.dp = 4; use one of 1, 2, 4, or 0" in refusal(
        "zero.stage=1", "zero.group=3", "parallel.dp=4"
    )
    assert "parallel.dp = 4 with tp = 2 needs 8 workers and elastic.max_workers = 4" in refusal(
        "parallel.tp=2", "parallel.dp=4"
    )
    assert "elastic.min_workers = 3 is above elastic.max_workers = 3, a mesh of 2 workers" in (
        refusal("parallel.tp=2", "elastic.min_workers=3", "elastic.max_workers=3")
    )


def test_replicas_and_not_workers_are_dealt_to():
    job = tiny("parallel.tp=4", "elastic.max_workers=16")
    assert (job.max_dp, job.shape.largest, job.num_leaves) == (4, 16, 12)
    assert "elastic.max_workers / parallel.tp = 13 replicas" in refusal(
        "parallel.tp=2", "elastic.max_workers=26"
    )


def test_bounds_of_nodes_have_to_agree_with_each_other_and_with_the_workers():
    assert "elastic.min_nodes = 3 is above elastic.max_nodes = 2" in refusal(
        "elastic.min_nodes=3", "elastic.max_nodes=2"
    )
    assert "elastic.min_nodes = 5 is above elastic.max_workers = 4" in refusal(
        "elastic.min_nodes=5"
    )
    assert tiny().elastic.max_nodes is None


def test_without_the_same_bits_single_microbatches_are_dealt():
    job = tiny("elastic.same_bits=false", "elastic.max_workers=2")
    assert job.num_leaves == job.num_microbatches == 12
    assert plan(job, 2).leaves == (6, 6)
    assert tiny("elastic.max_workers=2").num_leaves == 2


def test_heads_that_do_not_fit_the_width_list_those_that_would():
    assert "use one of 1, 2, 4, 8, 16, 32, 64" in refusal("model.num_heads=28")
    assert "model.num_kv_heads = 3 does not divide model.num_heads = 4; use one of 1, 2, 4" in (
        refusal("model.num_kv_heads=3")
    )


def dataset(row_tokens: int, vocab_size: int) -> Manifest:
    return Manifest(
        source="texts",
        source_digest="0",
        tokenizer="bytes",
        vocab_size=vocab_size,
        row_tokens=row_tokens,
        num_rows=24,
        shards=(),
    )


def test_a_dataset_must_fit_the_job():
    check_dataset(tiny(), dataset(129, 256))
    with pytest.raises(UserError, match=r"train.seq_len = 256 and the job says 128"):
        check_dataset(tiny(), dataset(257, 256))
    with pytest.raises(UserError, match=r"vocabulary of 300 and model.vocab_size = 256"):
        check_dataset(tiny(), dataset(129, 300))
