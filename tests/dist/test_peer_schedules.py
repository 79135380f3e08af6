"""What a rank computes, in order, against the schedules of torch.distributed.pipelining."""

from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as peer

from remesh.parallel.plan.schedules.catalogue import PUBLISHED, pipeline_of

KINDS = {"FORWARD": "forward", "FULL_BACKWARD": "backward"}
KINDS |= {"BACKWARD_INPUT": "input", "BACKWARD_WEIGHT": "weight"}


def peers_order(kind, ranks, rank, num_microbatches, stages):
    """It asks a schedule for these alone."""
    rounds = max(1, num_microbatches // ranks)
    asked = SimpleNamespace(
        pp_group_size=ranks,
        _num_stages=ranks,
        _n_microbatches=num_microbatches,
        n_local_stages=stages,
        microbatches_per_round=num_microbatches // rounds,
    )
    if issubclass(kind, peer.PipelineScheduleSingle):
        actions = kind._get_pipeline_order(asked)[rank]
    else:
        actions = kind._calculate_single_rank_operations(asked, rank)
    for action in filter(None, actions):
        yield from action.sub_actions or (action,)


@pytest.mark.parametrize(
    ("name", "kind", "stages"),
    [
        ("gpipe", peer.ScheduleGPipe, 1),
        ("1f1b", peer.Schedule1F1B, 1),
        ("interleaved", peer.ScheduleInterleaved1F1B, 2),
        ("interleaved", peer.ScheduleInterleaved1F1B, 3),
        ("zb-h1", peer.ScheduleInterleavedZeroBubble, 1),
        ("dualpipe-v", peer.ScheduleDualPipeV, 2),
    ],
)
def test_every_rank_computes_in_the_order_of_the_peers_schedule(name, kind, stages):
    for ranks in (2, 3, 4, 8):
        pipeline = pipeline_of(name, ranks, stages)
        for num_microbatches in (2 * ranks, 4 * ranks):
            for rank in range(ranks - (kind is peer.Schedule1F1B)):  # whose last one counts from 1
                found = PUBLISHED[name].order(pipeline, rank, num_microbatches)
                expected = peers_order(kind, ranks, rank, num_microbatches, stages)
                assert [(task.what, task.stage, task.slot) for task in found] == [
                    (KINDS[one.computation_type.name], one.stage_index, one.microbatch_index)
                    for one in expected
                    if one.computation_type.name in KINDS
                ]
