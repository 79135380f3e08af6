"""What has the same bits on plain groups has them on strict ones, and does nothing too early."""

import pytest
import test_context
import test_context_parity
import test_engine_bits
import test_expert_parity
import test_experts
import test_layout_changes
import test_overlap
import test_pipeline_bits
import test_pipeline_recut
import test_restore
import test_tensor
import test_tree
import test_zero_bits
from test_pipeline_bits import alone as piped_alone  # noqa: F401 - a fixture
from test_pipeline_recut import unbroken  # noqa: F401 - a fixture
from test_zero_bits import alone  # noqa: F401 - a fixture

from remesh.parallel.sums.tree import StreamedTreeSum, TreeSum


@pytest.mark.parametrize("kind", [TreeSum, StreamedTreeSum])
def test_sums_of_gradients(strict_pool, kind):
    test_tree.test_so_it_has_under_hybrid_sharding(strict_pool, kind, 4, 2)
    test_tree.test_so_it_has_where_slow_ranks_add_fewer_leaves(strict_pool, kind, (4, 1, 2))


def test_replicas_of_several_leaves(strict_pool):
    test_engine_bits.test_slow_replicas_may_compute_fewer_leaves(strict_pool, (5, 4, 3))


def test_every_zero_stage(strict_pool, alone):  # noqa: F811
    test_zero_bits.test_dp_stage_buckets_and_recompute_change_no_bit(strict_pool, alone, 3)


def test_zero_with_tensor_parallelism(strict_pool, alone):  # noqa: F811
    test_zero_bits.test_with_tp_fixed_dp_and_stage_change_no_bit(strict_pool, alone, "sequence", 2)


@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_and_sequence_parallelism(strict_pool, sequence):
    test_tensor.test_losses_and_gradients_are_those_of_the_whole_model(strict_pool, {}, 4, sequence)


@pytest.mark.parametrize("kind", ["plain", "tied"])
def test_every_schedule_of_a_pipeline(strict_pool, piped_alone, kind):  # noqa: F811
    test_pipeline_bits.test_schedules_and_ranks_change_no_bit(strict_pool, piped_alone, kind, 4)


def test_rings(strict_pool):
    test_context.test_losses_and_gradients_add_up_to_those_of_one_process(strict_pool, 4, "packed")
    for name in ("zero3 dp2 cp2 tp2", "zb-h1 pp2 cp2 tp2"):
        test_context_parity.test_losses_gradients_norms_and_parameters_are_those_of_one_process(
            strict_pool, name
        )


def test_a_live_change_of_the_pipeline(strict_pool, unbroken, tmp_path):  # noqa: F811
    names = ("folded", "zero1", "interleaved", "zero3")
    test_pipeline_recut.test_a_change_of_the_pipeline_in_a_live_run_keeps_the_bits(
        strict_pool, unbroken, tmp_path, names
    )


def test_a_lost_stage(strict_pool):
    test_pipeline_recut.test_a_stage_that_is_lost_comes_back_from_the_other_replica(strict_pool)


@pytest.mark.parametrize("names", [["zero3", "hybrid", "dp4"], ["dp3", "zero3"]])
def test_a_live_change_of_layout(strict_pool, names):
    test_restore.test_a_live_change_of_layout_keeps_the_bits_where_tp_stays(strict_pool, names)


def test_a_live_change_of_tensor_parallelism(strict_pool):
    names = ["dp3", "tp2 zero3", "tp4"]
    test_restore.test_a_live_change_of_tp_keeps_the_curve(strict_pool, names)


def test_a_live_change_of_every_degree(strict_pool):
    test_layout_changes.test_degrees_that_come_back_give_the_same_losses_and_the_same_bits_twice(
        strict_pool, "all"
    )


def test_a_peer_that_dies_while_it_sends_state(strict_pool):
    test_restore.test_a_rank_whose_source_dies_holds_no_state_and_one_that_had_it_keeps_it(
        strict_pool
    )


def test_experts_on_other_ranks(strict_pool):
    test_experts.test_each_rank_gets_the_rows_for_its_experts(strict_pool)
    test_experts.test_all_tokens_may_go_to_the_same_experts_and_the_others_learn_nothing(
        strict_pool
    )
    for name in ("dp4 ep2 zero3", "pp2 cp2 dp2 ep2", "dp4 tp2 ep4"):
        test_expert_parity.test_losses_gradients_norms_and_parameters_are_those_of_one_process(
            strict_pool, name
        )


def test_forwards_beside_backwards(strict_pool):
    test_overlap.test_pairs_have_the_bits_of_one_pass_after_the_other(strict_pool)
    for name in ("side by side cp2 ep2", "side by side tp2 sp zero3"):
        test_expert_parity.test_losses_gradients_norms_and_parameters_are_those_of_one_process(
            strict_pool, name
        )
