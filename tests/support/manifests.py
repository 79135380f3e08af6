"""Manifests of checkpoints and of datasets, whose details matter to few tests."""

from remesh.data.manifest import Manifest
from remesh.parallel.state.root_manifest import CheckpointManifest, DataPosition


def checkpoint_manifest(ref, files, *, position=0, **more):
    """That of a checkpoint whose data stand at this position."""
    settings = {"fingerprint": {}, "bit_key": "cpu", "created_by": {}, **more}
    return CheckpointManifest(
        step=ref.step,
        generation=ref.generation,
        start=ref.start,
        data=DataPosition(digest="d", position=position),
        files=tuple(files),
        **settings,
    )


def dataset_manifest(*, row_tokens=129, vocab_size=256, num_rows=24, shards=()):
    return Manifest(
        source="some text",
        source_digest="0" * 32,
        tokenizer="bytes",
        vocab_size=vocab_size,
        row_tokens=row_tokens,
        num_rows=num_rows,
        shards=tuple(shards),
    )
