"""What a rank does in tests of conversion; the pool's processes never load transformers."""

import numpy as np
import torch
from small_engine import spec, work_of
from taken_over import take_over

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.files.convert import open_weights, read_model
from remesh.parallel.files.convert_names import hugging_face_name
from remesh.parallel.holding.written_part import own_part
from remesh.parallel.state.root_manifest import CheckpointRef, shard_file_name
from remesh.parallel.state.shards import encode_fragments, write_shard
from remesh.parallel.step.engine import Engine

SEQ_LEN, VOCABULARY = 20, 61
TOKENS_BT = np.random.default_rng(5).integers(0, VOCABULARY, (3, SEQ_LEN))
AFTER = CheckpointRef(step=3, generation=1)


class Recording:
    """A model's maps, which keep the logits of the last loss."""

    def __init__(self, maths):
        self.embed, self.normed, self.columns = maths.embed, maths.normed, maths.columns
        self.maths = maths
        self.logits_BTV = None

    def loss(self, logits_BTV, targets_BT, z_loss):
        self.logits_BTV = logits_BTV.detach().clone()
        return self.maths.loss(logits_BTV, targets_BT, z_loss)


def logits_of(engine, mesh, tokens_BT):
    """This rank's share of the logits; of a new engine with the same state, which is left as is."""
    shadow = Engine(engine.spec)
    shadow.form(mesh)
    take_over(shadow, dict(engine.fragments()), engine.at_step)
    model = shadow.assembly.model
    model.maths = Recording(model.maths)
    tokens_BT = torch.from_numpy(tokens_BT)
    shadow.assembly.stages[0].forward(tokens_BT, tokens_BT)
    return model.maths.logits_BTV.numpy()


def put_together(shares, vocab_size):
    """The logits from the shares of the ranks of a tensor group."""
    return np.concatenate(shares, axis=-1)[..., :vocab_size]


class CountingStorage(LocalStorage):
    """Counts what is read of the numbers, which lie behind the headers."""

    read_bytes = 0

    def get_range(self, path, offset, length):
        self.read_bytes += length if offset > 8 else 0
        return super().get_range(path, offset, length)


def engine_with(seat, folder, layout, zero):
    """An engine that has read its part of the model, and how many bytes that took."""
    torch.set_num_threads(1)
    mesh = seat.mesh(layout, zero.shard_size(layout.dp))
    storage = CountingStorage(folder)
    config = read_model(storage, SEQ_LEN)
    engine = Engine(spec(4, 1, model=config, zero=zero))
    engine.form(mesh)
    weights = open_weights(storage, config)
    storage.read_bytes = 0
    take_over(engine, weights.start(fragment for fragment, _ in engine.fragments()), 0)
    return mesh, engine, storage.read_bytes


def compute(seat, folder, layout, zero):
    mesh, engine, read_bytes = engine_with(seat, folder, layout, zero)
    share = logits_of(engine, mesh, TOKENS_BT)
    mesh.close()
    return share, read_bytes, engine.held_bytes()["master"]


def train_and_save(seat, folder, layout, zero, run):
    mesh, engine, _ = engine_with(seat, folder, layout, zero)
    losses = [engine.step(step, work_of(mesh, step)).loss for step in (1, 2, 3)]
    share = logits_of(engine, mesh, TOKENS_BT)
    path = f"{AFTER.name}/{shard_file_name(seat.rank, seat.size)}"
    encoded = encode_fragments(own_part(engine.shard_state, mesh), AFTER)
    file = write_shard(LocalStorage(run), path, encoded)
    mesh.close()
    return share, file, losses


def save_shards(seat, store, folder, weights):
    """As FSDP2 with tensor parallelism does: rows of some, columns of others, the rest whole."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415 - seconds, for one test
    from torch import distributed  # noqa: PLC0415
    from torch.distributed.tensor import (  # noqa: PLC0415
        DeviceMesh,
        Replicate,
        Shard,
        distribute_tensor,
    )

    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=seat.rank, world_size=seat.size
    )
    mesh = DeviceMesh("cpu", list(range(seat.size)))
    placed = {
        hugging_face_name(name): distribute_tensor(
            value, mesh, [Replicate() if value.dim() == 1 else Shard("down" in name)]
        )
        for name, value in weights.items()
    }
    dcp.save({"model": placed, "step": 5}, checkpoint_id=folder)
    distributed.destroy_process_group()
