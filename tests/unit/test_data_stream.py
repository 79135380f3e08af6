import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from manifests import dataset_manifest

from remesh.data.blocks import ShardReader
from remesh.data.building.prepare import build
from remesh.data.building.shard_writer import ShardWriter
from remesh.data.data_error import DataError
from remesh.data.digest import StepDigest
from remesh.data.manifest import ROW_HASHES, Manifest
from remesh.data.order import rows_of
from remesh.data.row_hashes import HASH_BYTES, RowHashes, expected_digests
from remesh.data.skips import Skips, parse_skips
from remesh.data.stream import Stream, shard_reader

SEQ_LEN = 511
BATCH = 24


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A dataset of 18 blocks in two shards, and its rows by number."""
    root = tmp_path_factory.mktemp("stream")
    text = np.random.default_rng(1).integers(1, 128, 18 << 19, np.uint8)
    (root / "text.txt").write_bytes(text.tobytes())
    build(str(root / "text.txt"), root / "data", SEQ_LEN)
    rows = text[: len(text) // (SEQ_LEN + 1) * (SEQ_LEN + 1)].reshape(-1, SEQ_LEN + 1)
    return root / "data", rows.astype(np.uint16)


@pytest.fixture
def copied(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "data")


@pytest.fixture
def many_shards(tmp_path):
    """A dataset of 300 shards with one row each, which is full of its shard's number."""
    shards = []
    with (tmp_path / ROW_HASHES).open("wb") as hashes:
        for number in range(300):
            name = f"{number}.arrow"
            with (tmp_path / name).open("wb") as file:
                writer = ShardWriter(file, hashes, SEQ_LEN + 1, vocab_size=300)
                writer.write(np.full((1, SEQ_LEN + 1), number, np.uint16))
                shards.append(writer.finish(name))
    manifest = dataset_manifest(row_tokens=SEQ_LEN + 1, vocab_size=300, num_rows=300, shards=shards)
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    return tmp_path


@pytest.fixture
def open_stream():
    opened = []

    def open_one(folder, *, skips=(), seed=7, global_batch=BATCH):
        manifest = Manifest.load(folder)
        skipped = parse_skips(list(skips))
        opened.append(Stream(folder, manifest, global_batch=global_batch, seed=seed, skips=skipped))
        return opened[-1]

    yield open_one
    for stream in opened:
        stream.close()


def filled(stream, step, first=0, count=BATCH):
    out = np.zeros((count, SEQ_LEN + 1), np.uint16)
    return out, stream.fill(step, first, out)


def expected_rows(rows, step, *, seed=7, global_batch=BATCH):
    positions = (step - 1) * global_batch, step * global_batch
    return rows[rows_of(*positions, num_rows=len(rows), seed=seed)]


def test_a_step_holds_the_rows_that_the_order_names(made, open_stream):
    folder, rows = made
    stream = open_stream(folder)
    digests = expected_digests(folder, global_batch=BATCH, seed=7)
    for step in (1, 2, 170, 171, 768, 769, 10**9):  # windows and the epoch end in between
        out, digest = filled(stream, step)
        assert (out == expected_rows(rows, step)).all()
        assert digest == digests.of(step, Skips())


def test_replicas_in_any_number_share_the_same_global_batch(made, open_stream):
    """cases B064, B068, B070, B072, B073: the order knows neither replicas nor loaders."""
    folder, rows = made
    for cuts in ([0, 24], [0, 12, 24], [0, 1, 9, 24], [0, *range(2, 25, 2)], [0, 0, 24, 24]):
        streams = [open_stream(folder) for _ in pairwise(cuts)]
        parts = [
            filled(stream, 171, a, b - a)
            for stream, (a, b) in zip(streams, pairwise(cuts), strict=True)
        ]
        assert (np.concatenate([out for out, _ in parts]) == expected_rows(rows, 171)).all()
        assert (
            sum((digest for _, digest in parts), StepDigest())
            == filled(open_stream(folder), 171)[1]
        )


def test_a_new_stream_at_any_step_goes_on_as_the_old_one(made, open_stream):
    """cases B059, B060, B061, B062, B063: a step's number is the whole position, across epochs."""
    old = open_stream(made[0])
    for step in range(760, 775):
        assert filled(old, step)[1] == filled(open_stream(made[0]), step)[1]


def test_an_epoch_gives_every_row_once(made, open_stream):
    folder, rows = made
    stream = open_stream(folder, global_batch=1024)
    assert len(rows) == 18 * 1024
    seen = [filled(stream, step, 0, 1024)[0][:, :8].tobytes() for step in range(1, 19)]
    heads = np.frombuffer(b"".join(seen), np.uint16).reshape(-1, 8)
    assert sorted(heads.tolist()) == sorted(rows[:, :8].tolist())


def test_resizing_in_the_middle_loses_and_repeats_no_sample(made, open_stream):
    """cases B067, B068, B069: no rank has a state of its own that could be lost."""
    digests = []
    for replicas_by_step in ([4] * 9, [4, 4, 4, 2, 2, 1, 8, 8, 3]):
        steps = []
        for step, replicas in enumerate(replicas_by_step, start=1):
            parts = [
                filled(open_stream(made[0]), step, BATCH // replicas * rank, BATCH // replicas)[1]
                for rank in range(replicas)
            ]
            steps.append(sum(parts, StepDigest()).hex())
        digests.append(steps)
    assert digests[0] == digests[1]


def test_a_skipped_batch_is_never_read_and_steps_stay_dense(made, open_stream):
    folder, rows = made
    stream = open_stream(folder, skips=["3..8"])
    assert (filled(stream, 2)[0] == expected_rows(rows, 2)).all()
    assert (filled(stream, 3)[0] == expected_rows(rows, 9)).all()


def test_a_batch_larger_than_the_dataset_wraps_into_the_next_epoch(tmp_path, open_stream):
    (tmp_path / "tiny.txt").write_bytes(bytes(range(1, 31)))
    build(str(tmp_path / "tiny.txt"), tmp_path / "data", 9)
    stream = open_stream(tmp_path / "data", global_batch=200)
    out = np.zeros((200, 10), np.uint16)
    assert stream.fill(2, 0, out).count == 200
    assert (out[:, 0] == 1 + 10 * rows_of(200, 400, num_rows=3, seed=7)).all()


def test_a_buffer_that_does_not_fit_is_refused(made, open_stream):
    stream = open_stream(made[0])
    with pytest.raises(ValueError, match=r"samples \[20, 25\) of a batch of 24"):
        filled(stream, 1, 20, 5)
    for out in (np.zeros((2, SEQ_LEN), np.uint16), np.zeros((2, SEQ_LEN + 1), np.int32)):
        with pytest.raises(ValueError, match="512 uint16"):
            stream.fill(1, 0, out)


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_one_flipped_bit_names_the_file_and_the_block(copied, share, open_stream):
    """speed 5: it is found when its row is read, and a row beside it is read as it was."""
    manifest = Manifest.load(copied)
    block, row_bytes = manifest.shards[0].blocks[5], 2 * (SEQ_LEN + 1)
    flip(copied / "shard-00000.arrow", block.tokens_at + int(share * (block.rows * row_bytes - 1)))
    with pytest.raises(DataError) as error:
        filled(open_stream(copied, global_batch=18 * 1024), 1, 0, 18 * 1024)
    end = block.offset + block.size_bytes
    where = f"block 5 of {copied / 'shard-00000.arrow'} (bytes {block.offset} to {end}) is corrupt"
    assert str(error.value).startswith(f"{where}: its xxh3 is ")
    assert f"the manifest says {block.xxh3}; build it again with: remesh data" in str(error.value)
    assert str(error.value).endswith(f"--out {copied} --seq-len {SEQ_LEN}")


def test_flipped_bits_anywhere_are_refused_or_change_nothing(copied, open_stream):
    whole = filled(open_stream(copied, global_batch=2048), 1, 0, 2048)[0]
    manifest = Manifest.load(copied)
    path, blocks = copied / "shard-00001.arrow", manifest.shards[1].blocks
    refused = 0
    places = [0, 7, blocks[0].offset - 1, blocks[-1].offset + blocks[-1].size_bytes, -1]
    size, per_row = path.stat().st_size, 2 * (SEQ_LEN + 1)
    read = rows_of(0, 2048, num_rows=manifest.num_rows, seed=7)
    inside = [row - 16 * 1024 for row in read.tolist() if row >= 16 * 1024][:4]
    inside = [blocks[row // 1024].tokens_at + row % 1024 * per_row + 5 for row in inside]
    for at in (place % size for place in places + inside):
        flip(path, at)
        try:
            out = filled(open_stream(copied, global_batch=2048), 1, 0, 2048)[0]
            assert (out == whole).all()
        except DataError:
            refused += 1
        flip(path, at)
    assert refused == 4


def test_a_damaged_file_of_hashes_is_named(copied, open_stream):
    """speed 5: what rows are proven by is proven itself, by the manifest."""
    path = copied / ROW_HASHES
    flip(path, 3 * 1024 * HASH_BYTES + 10)
    stream = open_stream(copied, global_batch=18 * 1024)
    stream.check()
    with pytest.raises(DataError, match=rf"{path} is corrupt \(bytes 24576 to 32768, .*again with"):
        filled(stream, 1, 0, 18 * 1024)
    os.truncate(path, 5)
    with pytest.raises(DataError, match=rf"{path} has 5 bytes, {18 * 8192} are expected; build"):
        stream.check()
    path.unlink()
    with pytest.raises(DataError, match=f"cannot read {path}: No such file or directory; build"):
        stream.check()


def read_bytes():
    """All that this process has read so far, from files and elsewhere."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def test_a_cold_start_reads_little_more_than_its_rows(tmp_path, open_stream):
    """speed 5: not a whole block for each row; with rows of 4 KB at most twice their bytes."""
    text = np.random.default_rng(3).integers(1, 128, 16 << 19, np.uint8)
    (tmp_path / "text.txt").write_bytes(text.tobytes())
    manifest = build(str(tmp_path / "text.txt"), tmp_path / "data", 2047)
    stream = open_stream(tmp_path / "data")
    stream.check()
    out = np.zeros((BATCH, manifest.row_tokens), np.uint16)
    idle, start = -read_bytes(), read_bytes()
    idle += start
    stream.fill(1, 0, out)
    assert out.nbytes <= read_bytes() - start - idle <= 2 * out.nbytes


def test_hashes_are_kept_for_a_few_blocks_and_right_for_all(made):
    """speed 5: memory does not grow with the dataset."""
    folder, rows = made
    order = np.random.default_rng(4).permutation(len(rows))
    few = RowHashes(folder, Manifest.load(folder), max_kept_bytes=3 * 1024 * HASH_BYTES)
    parts = [few.of_rows(order[at : at + 7]) for at in range(0, len(order), 7)]
    whole = np.frombuffer((folder / ROW_HASHES).read_bytes(), np.uint64)
    assert (np.concatenate(parts) == whole[order]).all()
    assert few.num_kept == 3


def test_a_short_shard_names_both_sizes(copied, open_stream):
    """cases B077: the file and both sizes, before step 1."""
    path = copied / "shard-00001.arrow"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    before = num_open_files()
    for use in (Stream.check, lambda stream: filled(stream, 1)):
        with pytest.raises(
            DataError, match=f"{path} has {size - 1} bytes, the manifest says {size};"
        ):
            use(open_stream(copied))
    assert num_open_files() <= before + 2  # the whole shards, not the short one


def test_a_missing_shard_is_named(copied, open_stream):
    path = copied / "shard-00001.arrow"
    path.unlink()
    with pytest.raises(DataError, match=f"cannot read {path}: No such file or directory; build it"):
        open_stream(copied).check()


def test_shards_that_exchanged_their_names_are_refused(copied, open_stream):
    first, second = copied / "shard-00000.arrow", copied / "shard-00001.arrow"
    first.rename(copied / "aside")
    second.rename(first)
    (copied / "aside").rename(second)
    with pytest.raises(DataError, match=r"shard-00000.arrow has .* bytes, the manifest says"):
        open_stream(copied).check()


def test_a_whole_dataset_passes_the_check(made, open_stream):
    stream = open_stream(made[0])
    stream.check()


def expected_row_of_block(number):
    """The first row of a block, counted in it, that is among those of a batch of 1024."""
    rows = rows_of(0, 1024, num_rows=18 * 1024, seed=7)
    return int(rows[rows // 1024 == number][0]) % 1024


def at_once(stream, step, count=BATCH):
    out = np.zeros((count, SEQ_LEN + 1), np.uint16)
    return out, stream.fill_at_once(step, 0, out)


def test_what_is_in_memory_is_filled_without_a_wait_and_is_the_same(made, open_stream):
    stream = open_stream(made[0], skips=["3"])
    assert at_once(stream, 2)[1] is None  # nothing is known of its window yet
    far = 2 * 18 * 1024 // BATCH + 7  # in a window of which all hashes are there beforehand
    for step in (1, 2, far):
        expected, digest = filled(stream, step)
        out, found = at_once(stream, step)
        assert found == digest
        np.testing.assert_array_equal(out, expected)
    assert at_once(stream, 1)[1] is None  # of another window


def test_hashes_that_are_still_to_be_read_are_waited_for(tmp_path, open_stream):
    text = np.random.default_rng(2).integers(1, 128, 64 << 20, np.uint8)
    (tmp_path / "text.txt").write_bytes(text.tobytes())
    build(str(tmp_path / "text.txt"), tmp_path / "data", SEQ_LEN)
    stream = open_stream(tmp_path / "data", global_batch=4)
    filled(stream, 1, 0, 4)
    assert at_once(stream, 1, 4)[1] is not None
    assert at_once(stream, 2, 4)[1] is None


def test_what_is_not_as_it_was_built_is_left_to_who_can_say_so(copied, open_stream):
    stream = open_stream(copied, global_batch=1024)
    far = 5 * 18 + 1
    for step in (1, far):
        filled(stream, step, 0, 1024)
    assert at_once(stream, far, 256)[1] is not None
    row = int(rows_of((far - 1) * 1024, far * 1024, num_rows=18 * 1024, seed=7)[7])
    shard, place = Manifest.load(copied).shards[row >= 16 * 1024], row % (16 * 1024)
    tokens_at = shard.blocks[place // 1024].tokens_at
    flip(copied / shard.file, tokens_at + place % 1024 * 2 * (SEQ_LEN + 1) + 4)
    assert at_once(stream, far, 256)[1] is None


def test_data_changed_under_a_running_stream_is_noticed(copied, open_stream):
    stream = open_stream(copied, global_batch=1024)
    filled(stream, 1, 0, 1024)
    block = Manifest.load(copied).shards[1].blocks[0]
    first = expected_row_of_block(16)
    flip(copied / "shard-00001.arrow", block.tokens_at + first * 2 * (SEQ_LEN + 1) + 5)
    with pytest.raises(DataError, match=r"block 0 of .*shard-00001.arrow .* is corrupt: its xxh3"):
        filled(stream, 1, 0, 1024)


def test_data_changed_after_a_whole_epoch_is_noticed_and_counted(copied, open_stream):
    """speed 9: a window whose hashes are all there beforehand is proven and counted too."""
    stream = open_stream(copied, global_batch=1024)
    digests = expected_digests(copied, global_batch=1024, seed=7)
    filled(stream, 1, 0, 1024)
    far = 5 * 18 + 1  # in another window, of another epoch
    for step in (far, far + 1):
        assert filled(stream, step, 0, 1024)[1] == digests.of(step, Skips())
    row = int(rows_of((far - 1) * 1024, far * 1024, num_rows=18 * 1024, seed=7)[700])
    shard, place = Manifest.load(copied).shards[row >= 16 * 1024], row % (16 * 1024)
    block = shard.blocks[place // 1024]
    flip(copied / shard.file, block.tokens_at + place % 1024 * 2 * (SEQ_LEN + 1) + 4)
    with pytest.raises(DataError, match=rf"block {place // 1024} of .*{shard.file} .* is corrupt"):
        filled(stream, far, 0, 1024)


def test_a_shard_cut_short_under_a_running_stream_is_noticed(copied, open_stream):
    """Even where the rows stand in the buffer already, from the step before."""
    stream = open_stream(copied, global_batch=1024)
    out, _ = filled(stream, 1, 0, 1024)
    os.truncate(copied / "shard-00001.arrow", 4000)
    with pytest.raises(DataError, match=r"shard-00001.arrow has 4000 bytes"):
        stream.fill(1, 0, out)


def test_a_touched_but_equal_shard_is_fine(copied, open_stream):
    stream = open_stream(copied)
    before = filled(stream, 1)[0]
    for path in copied.iterdir():
        path.touch()
    assert (filled(stream, 1)[0] == before).all()


def test_a_shard_replaced_by_a_rename_is_still_the_open_one(copied, open_stream):
    stream = open_stream(copied, global_batch=1024)
    before = filled(stream, 1, 0, 1024)[0]
    (copied / "new").write_bytes(b"other")
    (copied / "new").replace(copied / "shard-00000.arrow")
    assert (filled(stream, 1, 0, 1024)[0] == before).all()


def test_a_block_whose_hash_is_right_but_is_no_arrow_is_refused(copied):
    manifest = Manifest.load(copied)
    reader = ShardReader(
        path=copied / "shard-00000.arrow",
        shard=manifest.shards[0],
        row_tokens=100,
        vocab_size=256,
        cure="build it again",
    )
    reader.open()
    with pytest.raises(DataError, match=r"block 0 of .* is corrupt: it is no block of rows"):
        reader.verify(0)
    reader.close()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"tokens_at": 1000}, "its tokens begin at [0-9]+, the manifest says 1000"),
        ({"row_hashes": "0" * 16}, "its rows' hashes have the xxh3 [0-9a-f]+, the manifest says 0"),
    ],
)
def test_a_manifest_that_says_something_else_of_the_rows_is_told(copied, other, says):
    shard = Manifest.load(copied).shards[0]
    (first, *rest) = shard.blocks
    reader = ShardReader(
        path=copied / "shard-00000.arrow",
        shard=replace(shard, blocks=(replace(first, **other), *rest)),
        row_tokens=SEQ_LEN + 1,
        vocab_size=256,
        cure="build it again",
    )
    reader.open()
    with pytest.raises(DataError, match=f"block 0 of .* is corrupt: {says}"):
        reader.verify(0)
    reader.close()


def test_a_row_that_was_read_wrong_from_a_whole_block_is_told_as_that(copied):
    """speed 5: a disk or memory that lies now and then trains nothing in silence."""
    reader = shard_reader(copied, Manifest.load(copied), 0)
    reader.open()
    with pytest.raises(DataError, match=r"row 7 was read with the xxh3 abc.* a moment later"):
        reader.refuse_row(3, 7, 0xABC)
    reader.close()


def num_open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_open_files_are_bounded_and_closed(many_shards, open_stream):
    before = num_open_files()
    stream = open_stream(many_shards, global_batch=300)
    for _ in range(2):
        out, digest = filled(stream, 1, 0, 300)
        assert sorted(out[:, 0].tolist()) == list(range(300))
        assert digest.count == 300
        assert num_open_files() == before + 256
    stream.close()
    assert num_open_files() == before
