"""Jobs with pipelines: which meshes they may have, by which schedules, and what is said of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.plan.fitting import memory_of, sizes_of
from remesh.orchestrator.plan.planner import NodeRoom, ladder_of, reasons, rung_for
from remesh.parallel.plan.book.asked import CHUNKS
from remesh.parallel.plan.memory.activations import kept_bytes, passing_bytes
from remesh.parallel.plan.memory.rank_memory import _at_position, rank_memory
from remesh.parallel.plan.memory.rank_sizes import HALVED
from remesh.parallel.plan.memory.sums import working_elements
from remesh.parallel.plan.schedules.catalogue import PUBLISHED, pipeline_of, schedules_of
from remesh.parallel.plan.schedules.operations import InputBackward
from remesh.parallel.plan.schedules.replica_slots import slots_alone
from remesh.parallel.plan.schedules.timing.timeline import time_line

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
ELASTIC = ("parallel.pp=4", "elastic.pp=[3, 2, 1]")


def tiny(*overrides):
    return load_job(TINY, overrides)


def layouts(job, workers):
    ladder = ladder_of(job)
    found = [rung_for(job, ladder, NodeRoom(nodes=1, places=n)) for n in workers]
    return [str(rung.layout) for rung in found]


def why(job, workers):
    room = NodeRoom(nodes=1, places=workers)
    ladder = ladder_of(job)
    return reasons(job, ladder, rung_for(job, ladder, room), room)


def test_the_pipeline_that_is_named_first_is_taken_of_those_with_as_many_workers():
    assert layouts(tiny(*ELASTIC), range(1, 5)) == ["dp=1", "pp=2", "pp=3", "pp=4"]
    last = tiny("parallel.pp=4", "elastic.pp=[1, 2]")
    assert layouts(last, range(1, 5)) == ["dp=1", "dp=2", "dp=3", "pp=4"]


def test_a_mesh_has_whole_pipelines_of_whole_groups():
    job = tiny("parallel.pp=2", "parallel.tp=2", "elastic.max_workers=12")
    assert layouts(job, (4, 7, 8, 12)) == [
        "pp=2 tp=2",
        "pp=2 tp=2",
        "dp=2 pp=2 tp=2",
        "dp=3 pp=2 tp=2",
    ]
    assert "3 workers stay spare: a mesh has whole replicas, 4 workers at a time" in why(job, 7)
    assert (job.max_dp, job.largest_mesh) == (3, 12)
    assert ladder_of(job).needed(1) == (
        "4 in tp groups of 2 on one node each and pipelines of 2 stages"
    )


def test_the_largest_number_of_replicas_is_that_of_the_shortest_pipelines():
    assert tiny("parallel.pp=4").max_dp == 1
    assert tiny(*ELASTIC).max_dp == 4
    fixed = tiny("parallel.dp=1", *ELASTIC)
    assert (fixed.max_dp, fixed.largest_mesh) == (1, 4)
    assert layouts(fixed, range(1, 5)) == ["dp=1", "pp=2", "pp=3", "pp=4"]


def test_a_schedule_that_is_not_legal_gives_way_to_1f1b_and_that_is_said():
    job = tiny("parallel.pp=2", "parallel.schedule=interleaved", "elastic.max_workers=8")
    assert (job.num_leaves, job.num_microbatches) == (12, 12)
    rungs = list(ladder_of(job).rungs())
    told = [(rung.layout.dp, rung.schedule, rung.cut.chunks) for rung in rungs]
    assert told == [
        (1, "interleaved", 2),
        (2, "interleaved", 2),
        (3, "interleaved", 2),
        (4, "1f1b", 1),
    ]
    assert not any("1f1b instead" in reason for reason in why(job, 6))
    [said] = [reason for reason in why(job, 8) if "1f1b instead of interleaved" in reason]
    assert "3" in said


def test_replicas_that_compute_in_rounds_have_as_many_microbatches_as_the_fullest():
    words = ("parallel.pp=2", "parallel.schedule=interleaved", "elastic.max_workers=10")
    batch = ("train.global_batch=14", "train.microbatch=1")  # of which four have 3 or 4 each
    found = {
        zero: next(
            rung.schedule
            for rung in ladder_of(tiny(*words, *batch, *zero)).rungs()
            if rung.layout.dp == 4
        )
        for zero in (("zero.stage=1",), ("zero.stage=2",), ("zero.stage=2", "zero.group=1"))
    }
    assert list(found.values()) == ["1f1b", "interleaved", "1f1b"]


def test_an_own_split_holds_for_its_number_of_stages_only():
    job = tiny("parallel.pp=2", "parallel.layers=[1, 3]", "elastic.pp=[3]")
    cuts = {rung.layout.pp: rung.cut.layers for rung in ladder_of(job).rungs()}
    assert cuts == {2: (1, 3), 3: ()}
    assert "pp=2: 1f1b, 2 stages of 1 and 3 layers" in ladder_of(job).reasons
    assert "parallel.layers holds for pp=2: other pipelines are cut as evenly as can be" in (
        ladder_of(job).reasons
    )
    even = ladder_of(tiny("parallel.pp=2", "parallel.layers=[2, 2]"))
    assert even == ladder_of(tiny("parallel.pp=2"))


def test_a_pipeline_with_more_virtual_stages_than_layers_has_whole_ones():
    job = tiny("parallel.pp=2", "parallel.schedule=dualpipe-v", "elastic.pp=[4]")
    by_stages = {rung.layout.pp: rung for rung in ladder_of(job).rungs()}
    assert (by_stages[2].cut.folded, by_stages[2].schedule) == (True, "dualpipe-v")
    assert (by_stages[4].cut.folded, by_stages[4].schedule) == (False, "1f1b")


def test_the_job_file_knows_the_schedules_that_there_are():
    assert {name: one.chunks for name, one in PUBLISHED.items() if one.chunks} == CHUNKS
    for name in PUBLISHED:
        assert tiny("parallel.pp=2", f"parallel.schedule={name}").parallel.schedule == name


@pytest.mark.parametrize("words", [(), ("model.tied=true",), ("model.num_layers=5",)])
def test_stages_hold_each_parameter_once_but_for_the_end_of_a_tied_model(words):
    """B006: no layer is lost where they do not come out even."""
    whole = memory_of(tiny(*words), ladder_of(tiny(*words)).highest)
    sizes = []
    for pp in (2, 4):
        job = tiny(*words, f"parallel.pp={pp}")
        sizes.append(held_by_stages(job))
    copied = 4 * 256 * 128 if "model.tied=true" in words else 0
    assert sizes == [whole.parameters + copied] * 2


def held_by_stages(job):
    rung = next(ladder_of(job).rungs())
    sizes = sizes_of(job, rung)
    return 4 * sum(
        run.num * run.pieces.shard_size
        for position in range(rung.layout.pp)
        for run in replace(sizes, position=position).buckets
    )


def test_schedules_that_halve_a_backward_keep_more_and_are_known():
    found = {
        name
        for name in PUBLISHED
        for one in schedules_of(name, pipeline_of(name, 2, 2), slots_alone(4))[0]
        if isinstance(one, InputBackward)
    }
    assert found == HALVED
    whole, halved = (kept_bytes(sizes(name, 3, microbatches=8)) for name in ("1f1b", "zb-h1"))
    in_flight = sizes("zb-h1", 3).in_flight
    assert halved > in_flight * whole


def sizes(schedule, position, microbatches=8, pp=4, **more):
    words = [f"{key.replace('__', '.')}={value}" for key, value in more.items()]
    stages = ("parallel.pp=4", f"parallel.schedule={schedule}", "model.num_layers=8", *words)
    job = tiny(*stages, f"train.global_batch={2 * microbatches}")
    found = sizes_of(job, ladder_of(job).highest)
    assert (found.pipeline.ranks, found.num_microbatches) == (pp, microbatches)
    return replace(found, position=position)


def test_activations_wait_as_long_as_the_schedule_has_it():
    """GPipe keeps all microbatches, 1F1B as many as there are stages from here to the end."""
    assert [sizes("gpipe", n).in_flight for n in range(4)] == [8] * 4
    assert [sizes("1f1b", n).in_flight for n in range(4)] == [4, 3, 2, 1]
    assert [sizes("1f1b", n, microbatches=2).in_flight for n in range(4)] == [2, 2, 2, 1]
    kept = {name: kept_bytes(sizes(name, 0)) for name in ("gpipe", "1f1b")}
    assert kept["gpipe"] == 2 * kept["1f1b"]
    whole = tiny("model.num_layers=8", "train.global_batch=16")
    assert 4 * kept_bytes(sizes_of(whole, ladder_of(whole).highest)) == 4 * kept["1f1b"]


def test_only_the_last_stage_has_logits_and_gpipe_keeps_all_of_them():
    wide = {"model__vocab_size": 4096}
    first, last = (sizes("gpipe", n, **wide) for n in (0, 3))
    assert kept_bytes(last) > kept_bytes(first)
    assert passing_bytes(last) > 5 * passing_bytes(first)
    last = sizes("1f1b", 3, **wide)
    assert kept_bytes(last) < kept_bytes(first)


def test_the_memory_of_a_mesh_is_that_of_its_fullest_rank():
    for schedule, fullest in (("1f1b", 0), ("gpipe", 3)):
        some = [sizes(schedule, n, model__vocab_size=4096) for n in range(4)]
        every = [_at_position(one).total for one in some]
        assert rank_memory(some[0]).total == max(every) == every[fullest]
    own = [_at_position(sizes("1f1b", n, parallel__layers="[1,1,5,1]")).total for n in range(4)]
    assert rank_memory(sizes("1f1b", 0, parallel__layers="[1,1,5,1]")).total == max(own) == own[2]


def shared_experts(*overrides):
    """DualPipeV of two ranks, four microbatches a replica; replicas share experts in pairs."""
    model = ("model.num_layers=8", "model.num_experts=4", "model.num_dense_layers=0")
    mesh = ("parallel.pp=2", "parallel.ep=2", "parallel.dp=2", "elastic.max_workers=4")
    schedule = ("parallel.schedule=dualpipe-v", "train.global_batch=48")
    return tiny(*model, *mesh, *schedule, "zero.stage=3", *overrides)


def test_passes_that_are_paired_have_the_weights_of_two_layers_at_once():
    job = shared_experts()
    sizes = sizes_of(job, rung_for(job, ladder_of(job), NodeRoom(nodes=1, places=4)))
    apart = replace(sizes, schedule="1f1b", pipeline=pipeline_of("dualpipe-v", 2))
    assert sizes.paired
    assert not apart.paired
    assert working_elements(sizes) > working_elements(apart)


def test_the_plan_knows_that_paired_passes_idle_longer():
    [paired] = [line for line in why(shared_experts(), 4) if "dualpipe-v idles" in line]
    pipeline, slots = pipeline_of("dualpipe-v", 2), slots_alone(12)
    apart, beside = (
        time_line(schedules_of("dualpipe-v", pipeline, slots, shares_experts=shares)).bubble
        for shares in (False, True)
    )
    assert f"idles {float(beside):.0%}" in paired
    assert f"{float(beside):.0%}" != f"{float(apart):.0%}"
