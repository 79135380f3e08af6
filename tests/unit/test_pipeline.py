"""How the layers of a model are laid on the ranks of a pipeline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.model_config import ModelConfig, block_parameters, parameter_shapes
from remesh.parallel.plan.pipeline import Pipeline

SHAPES = st.sampled_from([(1, False), (2, False), (3, False), (2, True)])


def model(num_layers):
    return ModelConfig(
        num_layers=num_layers,
        width=8,
        num_heads=2,
        num_kv_heads=2,
        ffn_width=16,
        vocab_size=11,
        seq_len=4,
    )


def test_thirty_layers_on_four_ranks_are_all_there():
    """Case B006: a model of 28 layers was built of 30."""
    pipeline = Pipeline(ranks=4)
    assert pipeline.sizes(30) == (8, 8, 7, 7)
    blocks = list(block_parameters(model(30)).values())
    held = [name for span in pipeline.spans(30) for n in span for name in blocks[n]]
    assert held == list(parameter_shapes(model(30)))


@given(st.integers(1, 8), SHAPES, st.integers(0, 40))
def test_every_block_has_one_stage_and_every_stage_one_rank(ranks, shape, more):
    chunks, folded = shape
    pipeline = Pipeline(ranks=ranks, chunks=chunks, folded=folded)
    num_layers = pipeline.num_stages + more
    spans = pipeline.spans(num_layers)
    assert [block for span in spans for block in span] == list(range(num_layers + 2))
    sizes = pipeline.sizes(num_layers)
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)
    held = [pipeline.stages_of(rank) for rank in range(ranks)]
    assert all(list(stages) == sorted(stages) and len(stages) == chunks for stages in held)
    assert {stage: rank for rank, stages in enumerate(held) for stage in stages} == {
        stage: pipeline.rank_of(stage) for stage in range(pipeline.num_stages)
    }
    for stages in held:
        assert [pipeline.chunk_of(stage) for stage in stages] == list(range(chunks))


def test_a_folded_pipeline_turns_at_its_last_rank():
    pipeline = Pipeline(ranks=4, chunks=2, folded=True)
    assert [pipeline.rank_of(stage) for stage in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert Pipeline(ranks=4, chunks=2).rank_of(4) == 0


def test_own_layers_are_those_of_each_stage():
    assert Pipeline(ranks=2, layers=(1, 3)).spans(4) == (range(2), range(2, 6))


@pytest.mark.parametrize(
    ("ranks", "layers", "num_layers", "text"),
    [
        (1, (1,), 20, r"layers \(1,\) add up to 1, but the model has 20; use 1 numbers? that add"),
        (2, (10, 9), 20, "add up to 19, but the model has 20; use 2 numbers that add up to 20"),
        (
            4,
            (),
            3,
            "num_layers=3 cannot be cut into 4 stages, each of which needs one; use at most 3",
        ),
    ],
)
def test_layers_that_do_not_add_up_are_refused(ranks, layers, num_layers, text):
    """Case B008: a setting for the last of one stages shrank the model."""
    with pytest.raises(LayoutError, match=text):
        Pipeline(ranks=ranks, layers=layers).spans(num_layers)
    assert Pipeline(layers=(20,)).sizes(20) == (20,)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"ranks": 0}, "ranks=0 and chunks=1 are no pipeline; use 1 or more"),
        ({"chunks": 0}, "ranks=1 and chunks=0 are no pipeline"),
        ({"ranks": 2, "chunks": 3, "folded": True}, "chunks=3, use 2"),
        ({"ranks": 2, "layers": (1, 2, 3)}, r"layers \(1, 2, 3\) are not those of 2 stages; use 2"),
        ({"ranks": 2, "layers": (3, 0)}, r"layers \(3, 0\) are not those of 2 stages"),
    ],
)
def test_what_is_no_pipeline_is_refused(wrong, text):
    with pytest.raises(LayoutError, match=text):
        Pipeline(**wrong)
