from pathlib import Path

import pytest
from manifests import dataset_manifest

from remesh.orchestrator.job.dataset import check_dataset
from remesh.orchestrator.job.job import Job, load_job
from remesh.orchestrator.plan.planner import NodeRoom, dealt, ladder_of, reasons, rung_for
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.leaves import leaves_each

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def tiny(*overrides: str) -> Job:
    return load_job(TINY, overrides)


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        tiny(*overrides)
    return str(caught.value)


def rung(job, workers):
    """What workers that are all on one node get."""
    return rung_for(job, ladder_of(job), NodeRoom(nodes=1, places=workers))


def why(job, workers):
    room = NodeRoom(nodes=1, places=workers)
    return reasons(job, ladder_of(job), rung(job, workers), room)


def batch(global_batch: int, microbatch: int, dp: int) -> list[str]:
    return [
        f"train.global_batch={global_batch}",
        f"train.microbatch={microbatch}",
        f"parallel.dp={dp}",
        "elastic.max_workers=8",
    ]


def test_a_batch_that_multiplies_out_is_dealt_evenly():
    job = tiny(*batch(256, 4, 8))
    found = rung(job, 8)
    assert found.layout == Layout(dp=8)
    assert set(leaves_each(job.num_leaves, 8)) == {job.num_leaves // 8}
    assert dealt(job, found).endswith("100% efficient")


def test_a_batch_that_does_not_multiply_out_is_refused_with_all_numbers():
    assert "250 is not a multiple of train.microbatch = 4; use one of 224, 256" in refusal(
        *batch(250, 4, 8)
    )
    few = refusal(*batch(32, 8, 8))
    assert "32 in microbatches of 8 makes 4, too few for parallel.dp = 8 replicas" in few
    assert "use one of 1, 2, 4 as parallel.dp, or one of 1, 2, 4 as train.microbatch" in few
    assert "makes 12, which parallel.dp = 8 does not divide; use one of 1, 2, 3, 4, 6 as" in (
        refusal(*batch(24, 2, 8))
    )


def test_a_microbatch_larger_than_the_batch_is_refused_with_what_works():
    assert "use 8, or one of 1, 2, 4 as train.microbatch" in refusal(*batch(4, 8, 1))


def test_more_workers_than_microbatches_are_refused_by_the_key_that_says_so():
    assert "too few for elastic.max_workers = 13" in refusal("elastic.max_workers=13")
    assert "too few for parallel.dp = 13" in refusal("parallel.dp=13", "elastic.max_workers=13")


@pytest.mark.parametrize("workers", range(1, 9))
def test_every_leaf_is_dealt_at_any_number_of_workers(workers):
    job = tiny("elastic.max_workers=8")
    found = rung(job, workers)
    counts = leaves_each(job.num_leaves, workers)
    assert found.workers == workers == len(counts)
    assert sum(counts) == job.num_leaves
    assert min(counts) >= 1


def test_the_plan_says_who_stays_spare_and_what_is_missing():
    assert why(tiny(), 4) == ("dp=4: 12 leaves of 1 microbatch, 3 each, 100% efficient",)
    assert "2 workers stay spare: the job has at most 4 replicas" in why(tiny(), 6)
    assert "2 replicas fewer than the job would use" in why(tiny(), 2)


def test_too_few_workers_are_refused_with_both_numbers():
    with pytest.raises(UserError, match=r"2 workers are fewer than elastic.min_workers = 3"):
        rung(tiny("elastic.min_workers=3"), 2)
    assert "elastic.min_workers = 5 is above elastic.max_workers = 4" in refusal(
        "elastic.min_workers=5"
    )
    assert "parallel.dp = 8 needs 8 workers and elastic.max_workers = 4" in refusal("parallel.dp=8")


def test_more_ranks_than_kv_heads_replicate_them_and_the_plan_says_so():
    job = tiny("model.num_kv_heads=2", "parallel.tp=4", "elastic.max_workers=8")
    assert (
        "each of the 2 kv heads is replicated on 2 ranks of a tp group: parallel.tp = 4 is more "
        "than there are"
    ) in why(job, 4)


def test_workers_that_share_sequences_make_up_whole_rings_and_the_plan_says_so():
    job = tiny("parallel.cp=2", "elastic.max_workers=8")
    assert str(rung(job, 5).layout) == "dp=2 cp=2"
    assert (
        "cp=2: a sequence is on 2 workers, which may straddle nodes; each has 64 tokens of it"
    ) in why(job, 5)
    job = tiny("parallel.cp=2", "parallel.tp=2", "elastic.max_workers=8", "zero.stage=1")
    found = rung(job, 9)
    assert (str(found.layout), found.shards) == ("dp=2 cp=2 tp=2", 4)
    assert (
        "cp=2: a sequence is on 4 workers, on one node; each 2 of them have 64 tokens of it"
    ) in why(job, 9)
    assert "cp and tp groups of 4 on one node each" in ladder_of(job).needed(1)


def test_replicas_in_zero_groups_share_a_copy_with_all_ranks_of_their_rings():
    found = rung(tiny("parallel.cp=2", "elastic.max_workers=8", "zero.stage=2", "zero.group=2"), 8)
    assert (str(found.layout), found.shards) == ("dp=4 cp=2", 4)


EXPERTS = ("model.num_experts=4", "parallel.ep=2", "elastic.max_workers=8")


def test_replicas_that_share_experts_come_together_and_have_as_many_leaves():
    job = tiny(*EXPERTS, "train.global_batch=24", "train.microbatch=1")
    ladder = ladder_of(job)
    assert [rung.layout for rung in ladder.rungs()] == [Layout(dp=dp, ep=2) for dp in (2, 4, 6, 8)]
    assert job.num_leaves % 8 == 0
    assert {rung.cut.ep for rung in ladder.rungs()} == {2}
    lines = why(job, 5)
    assert "ep=2: 2 replicas have all experts between them, 2 experts each" in lines
    assert any("1 worker stays spare" in line for line in lines)


def test_experts_and_zero_groups_have_to_fit_into_one_another():
    text = refusal(
        "model.num_experts=6",
        "parallel.ep=3",
        "zero.stage=1",
        "zero.group=2",
        "elastic.max_workers=12",
    )
    assert "zero.group = 2 and parallel.ep = 3: one of them has to divide the other" in text
    assert "use 0, or one of 1, 2 as parallel.ep" in text
    assert "needs 4 workers" in refusal(*EXPERTS[:1], "parallel.ep=4", "elastic.max_workers=3")
    assert "model.num_experts = 0" in refusal("parallel.ep=2")
    assert "does not divide model.num_experts = 4" in refusal(EXPERTS[0], "parallel.ep=3")
    rings = ("model.num_experts=12", "parallel.cp=2", "elastic.max_workers=24")
    assert "parallel.ep = 3 and parallel.cp = 2: one of them has to" in refusal(
        *rings, "parallel.ep=3"
    )
    assert ladder_of(tiny(*rings, "parallel.ep=4")).smallest(1).layout == Layout(dp=2, cp=2, ep=4)
    assert ladder_of(tiny(*rings, "parallel.ep=2")).smallest(1).layout == Layout(cp=2, ep=2)
    full = tiny(*rings, "model.capacity_factor=1.25")
    assert ladder_of(full).smallest(1).layout == Layout(cp=2)


@pytest.mark.parametrize(
    ("workers", "layout", "spare"), [(2, "tp=2", 0), (5, "dp=2 tp=2", 1), (9, "dp=4 tp=2", 1)]
)
def test_workers_make_up_whole_tp_groups_and_the_rest_is_spare(workers, layout, spare):
    job = tiny("parallel.tp=2", "elastic.max_workers=8")
    found = rung(job, workers)
    assert str(found.layout) == layout
    assert found.workers == workers - spare
    assert any("spare" in reason for reason in why(job, workers)) == bool(spare)


def test_replicas_come_in_whole_zero_groups_if_they_are_set():
    hybrid = ["zero.stage=3", "zero.group=2", "parallel.tp=2", "elastic.max_workers=12"]
    found = rung(tiny(*hybrid), 11)
    assert (found.layout, found.shards) == (Layout(dp=4, tp=2), 2)
    spare = "3 workers stay spare: a mesh has whole groups of 2 replicas, 4 workers at a time"
    assert spare in why(tiny(*hybrid), 11)
    assert "ZeRO stage 3: each 2 replicas share one copy" in why(tiny(*hybrid), 11)
    with pytest.raises(UserError, match="3 workers are fewer than the 4 of the smallest mesh with"):
        rung(tiny(*hybrid), 3)
    assert rung(tiny("zero.stage=1"), 3).shards == 3
    assert rung(tiny(), 3).shards == 1


def test_degrees_that_no_number_of_workers_fits_are_refused_with_both_numbers():
    assert "parallel.tp = 4 in groups of zero.group = 2 replicas needs 8 workers and elastic" in (
        refusal("parallel.tp=4", "zero.stage=1", "zero.group=2")
    )
    assert "zero.group = 3 does not divide parallel.dp = 4; use one of 1, 2, 4, or zero." in (
        refusal("zero.stage=1", "zero.group=3", "parallel.dp=4")
    )
    assert (
        "parallel.dp = 4 with parallel.tp = 2 needs 8 workers and elastic.max_workers = 4"
        in refusal("parallel.tp=2", "parallel.dp=4")
    )
    assert "elastic.min_workers = 3 is above elastic.max_workers = 3, a mesh of 2 workers" in (
        refusal("parallel.tp=2", "elastic.min_workers=3", "elastic.max_workers=3")
    )


def test_replicas_and_not_workers_are_dealt_to():
    job = tiny("parallel.tp=4", "elastic.max_workers=16")
    assert (job.max_dp, job.largest_mesh, job.num_leaves) == (4, 16, 12)
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
    assert dealt(job, rung(job, 2)) == ("dp=2: 12 leaves of 1 microbatch, 6 each, 100% efficient")
    assert tiny("elastic.max_workers=2").num_leaves == 2


def test_heads_that_do_not_fit_the_width_list_those_that_would():
    assert "use one of 1, 2, 4, 8, 16, 32, 64" in refusal("model.num_heads=28")
    assert "model.num_kv_heads = 3 does not divide model.num_heads = 4; use one of 1, 2, 4" in (
        refusal("model.num_kv_heads=3")
    )


def test_a_dataset_must_fit_the_job():
    check_dataset(tiny(), dataset_manifest())
    with pytest.raises(UserError, match=r"train.seq_len = 256 and the job says 128"):
        check_dataset(tiny(), dataset_manifest(row_tokens=257))
    with pytest.raises(UserError, match=r"vocabulary of 300 and model.vocab_size = 256"):
        check_dataset(tiny(), dataset_manifest(vocab_size=300))
