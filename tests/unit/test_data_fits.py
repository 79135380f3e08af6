"""Whether a dataset is one that a job can train on: its tokens, its rows, its positions."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from remesh.cli.data_commands import ensure_dataset
from remesh.data.building.prepare import build
from remesh.data.building.shard_writer import ShardWriter
from remesh.data.data_error import DataError
from remesh.data.manifest import MANIFEST, ROW_HASHES, Manifest
from remesh.data.skips import Skips
from remesh.data.stream import Stream
from remesh.orchestrator.job.dataset import check_tokenizer
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
SEQ_LEN = 16


def job_of(folder, *overrides):
    return load_job(TINY, [f"train.seq_len={SEQ_LEN}", f"data.dir={folder}", *overrides])


def dataset(folder, num_rows, vocab_size=256):
    """A dataset whose rows count up from 0."""
    folder.mkdir()
    with (folder / "0.arrow").open("wb") as file, (folder / ROW_HASHES).open("wb") as hashes:
        writer = ShardWriter(file, hashes, SEQ_LEN + 1, vocab_size=1 << 16)
        tokens = np.arange(num_rows * (SEQ_LEN + 1), dtype=np.uint16)
        writer.write(tokens.reshape(num_rows, -1))
        shard = writer.finish("0.arrow")
    fields = {"source": "", "source_digest": "", "tokenizer": "bytes"}
    manifest = Manifest(
        row_tokens=SEQ_LEN + 1,
        num_rows=num_rows,
        vocab_size=vocab_size,
        shards=(shard,),
        **fields,
    )
    (folder / MANIFEST).write_text(manifest.to_json())
    return manifest


def test_a_token_beyond_the_vocabulary_is_found_at_first_touch(tmp_path):
    """parallel A12: with tp > 1 it would train nothing in silence, with 1 it ends the worker."""
    for vocab_size, fits in ((4 * (SEQ_LEN + 1), True), (4 * (SEQ_LEN + 1) - 1, False)):
        folder = tmp_path / str(vocab_size)
        manifest = dataset(folder, 4, vocab_size)
        stream = Stream(folder, manifest, global_batch=4, seed=0, skips=Skips())
        out = np.zeros((4, SEQ_LEN + 1), np.uint16)
        if fits:
            assert stream.fill(1, 0, out).count == 4
        else:
            with pytest.raises(DataError, match=r"block 0 of .* token 67 .*vocabulary of 67"):
                stream.fill(1, 0, out)
        stream.close()


def test_a_dataset_with_fewer_rows_than_a_batch_is_refused(tmp_path):
    """parallel A11: a step would train a row several times."""
    dataset(tmp_path / "one", 3)
    for batch, fits in ((2, True), (4, False)):
        job = job_of(tmp_path / "one", f"train.global_batch={batch}", "elastic.max_workers=1")
        if fits:
            ensure_dataset(job, pytest.fail)
        else:
            with pytest.raises(UserError, match=r"3 rows and train.global_batch = 4; .* more text"):
                ensure_dataset(job, pytest.fail)


def test_skips_that_leave_no_position_are_refused():
    """parallel A11: the trainer met them as an OverflowError."""
    beyond = 'data.skip=["1..999999999999999999"]'
    with pytest.raises(UserError, match=r"data.skip .*train.global_batch = 24 .*beyond"):
        load_job(TINY, [beyond])
    assert load_job(TINY, ['data.skip=["1..99999999999999999"]']).num_leaves


@pytest.fixture
def bytes_dataset(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be, that is the question\n" * 40)
    build(str(tmp_path / "a.txt"), tmp_path / "data", SEQ_LEN)
    return tmp_path / "data"


def test_ids_that_no_data_uses_are_announced(bytes_dataset):
    """user 5: a vocabulary that is wider than the dataset's is allowed and said."""
    notes = []
    ensure_dataset(job_of(bytes_dataset, "model.vocab_size=300"), notes.append)
    assert "vocabulary of 256 (bytes)" in notes[0]
    assert "model.vocab_size = 300" in notes[0]
    ensure_dataset(job_of(bytes_dataset), pytest.fail)


def test_weights_of_another_tokenizer_are_not_trained_on_this_one_s_tokens(bytes_dataset):
    """user 5: imported weights know their words by other ids; the choice is the user's."""
    manifest = Manifest.load(bytes_dataset)
    other = job_of(bytes_dataset, "model.vocab_size=32000")
    with pytest.raises(UserError, match=r"vocabulary of 32000 .*256 \(bytes\).*--new-tokenizer"):
        check_tokenizer(other, manifest, chosen=False)
    check_tokenizer(other, manifest, chosen=True)
    check_tokenizer(job_of(bytes_dataset), manifest, chosen=False)


def test_another_seed_and_other_content_of_the_same_length_are_other_data(tmp_path):
    """cases B085: the identity of a dataset is its content, and the seed stands beside it."""
    digests = []
    for name, text in (("one", "abcdefgh" * 40), ("two", "abcdefgi" * 40)):
        (tmp_path / f"{name}.txt").write_text(text)
        digests.append(build(str(tmp_path / f"{name}.txt"), tmp_path / name, SEQ_LEN).digest)
    prints = [job_of("d", f"job.seed={seed}").fingerprint(d) for seed in (0, 1) for d in digests]
    assert len({json.dumps(one) for one in prints}) == 4


def test_a_token_beyond_the_vocabulary_is_not_written(tmp_path):
    """parallel A12: at the build as well, whatever the tokenizer."""
    with (tmp_path / "0.arrow").open("wb") as file:
        writer = ShardWriter(file, io.BytesIO(), 4, vocab_size=300)
        writer.write(np.full((2, 4), 299, np.uint16))
        with pytest.raises(DataError, match="token 300 is beyond the vocabulary of 300"):
            writer.write(np.full((2, 4), 300, np.uint16))
