from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.data.cursor import batch_positions
from remesh.data.data_error import DataError
from remesh.data.skips import Skips, parse_skips

NONE = Skips()


def test_steps_follow_each_other_without_a_gap():
    ranges = [batch_positions(step, global_batch=24, skips=NONE) for step in range(1, 6)]
    assert [position for positions in ranges for position in positions] == list(range(120))


def test_a_resume_in_the_middle_of_an_epoch_shortens_only_that_epoch():
    epochs = [positions.start // 20 for positions in steps_from(8, stop=30, global_batch=2)]
    assert [epochs.count(epoch) for epoch in (0, 1, 2)] == [3, 10, 10]


def test_microbatches_do_not_count_as_steps():
    batch, epoch = 4, 100  # a step of four microbatches of one sequence, an epoch of 100 sequences
    after_500 = batch_positions(501, global_batch=batch, skips=NONE).start
    after_105 = batch_positions(106, global_batch=batch, skips=NONE).start
    assert divmod(after_500, epoch) == (20, 0)
    assert divmod(after_105, epoch) == (4, 20)


def test_step_zero_is_refused():
    with pytest.raises(ValueError, match="counted from 1"):
        batch_positions(0, global_batch=1, skips=NONE)


def test_the_step_at_a_skipped_batch_trains_the_batch_behind_the_range():
    skips = parse_skips(["30..35"])
    assert [skips.batch_of(step) for step in (1, 29, 30, 31)] == [1, 29, 36, 37]
    assert batch_positions(30, global_batch=10, skips=skips) == range(350, 360)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=8))
def test_skips_equal_a_walk_over_all_batches(pairs):
    skips = parse_skips([f"{first}..{first + length}" for first, length in pairs])
    skipped = {first + k for first, length in pairs for k in range(length + 1)}
    walk = list(islice((batch for batch in count(1) if batch not in skipped), 80))
    assert [skips.batch_of(step) for step in range(1, 81)] == walk


def test_ranges_are_merged_and_sorted():
    texts = ["8..9", "1..3", " 2 .. 5 ", "6", "20"]
    assert parse_skips(texts).ranges == ((1, 6), (8, 9), (20, 20))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("35..30", 'data.skip: "35..30" is empty; did you mean "30..35"?'),
        ("0..3", 'data.skip: "0..3" starts at 0; batches are numbered from 1'),
        ("-1..3", 'write it as "30..35"'),
        ("3...5", 'data.skip: "3...5" is not a range'),
        ("", 'write it as "30..35"'),
        ("1,2", 'write it as "30..35"'),
        ("\u0663", 'write it as "30..35"'),
        ("9" * 19, 'write it as "30..35"'),
    ],
)
def test_a_bad_range_is_named(text, says):
    with pytest.raises(DataError) as error:
        parse_skips(["1..2", text])
    assert says in str(error.value)


def steps_from(first, *, stop, global_batch):
    return [
        batch_positions(step, global_batch=global_batch, skips=NONE)
        for step in range(first, stop + 1)
    ]
