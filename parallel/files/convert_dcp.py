"""Torch distributed checkpoints as weights of a model, and a whole state as one of them."""

import warnings
from pathlib import Path

from remesh.parallel.files.convert import Read
from remesh.parallel.files.convert_names import names_in
from remesh.parallel.files.dcp import boxes_in, located
from remesh.parallel.files.weights import Weights, check_tied, weights_of
from remesh.parallel.holding.shard_state import COUNT, MOMENTS
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.storage import Storage


def open_weights(storage: Storage, config: ModelConfig, key: str | None = None) -> Weights:
    """The weights of a distributed checkpoint; whatever else it holds is left out.

    They may be under Remesh's names or Hugging Face's, at the top or below a key such as "model";
    `key` says which, where several copies are there.
    Cost: the table of contents, and of each box some small reads.
    Raises: CheckpointError with the cure.
    """
    boxes = boxes_in(storage)
    naming = names_in({box.fragment.name for box in boxes}, config, key)
    names = naming.names
    wanted = set(names.values())
    stored = (located(storage, box) for box in boxes if box.fragment.name in wanted)
    weights = weights_of(storage, stored, names, config)
    if naming.head:
        head = [located(storage, box) for box in boxes if box.fragment.name == naming.head]
        check_tied(weights, head)
    return weights


def write_checkpoint(folder: Path, config: ModelConfig, read: Read) -> None:
    """A distributed checkpoint of a whole state, which `torch.distributed.checkpoint.load` reads.

    It holds {"model": {name: weight}, "optimizer": {"state": {name: {"exp_avg", "exp_avg_sq",
    "step"}}}}, all fp32, `step` being the number of updates as in torch's AdamW.
    Cost: memory for the whole state; some seconds to import torch's module.
    """
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - seconds

    boxes = {
        name: {prefix: whole(prefix + name, shape, "float32") for prefix in ("", *MOMENTS)}
        for name, shape in parameter_shapes(config).items()
    }
    count = whole(COUNT, (1,), "int64")
    found = read([count, *(box for three in boxes.values() for box in three.values())])
    num_updates = found[count][0].float()
    state = {
        name: {moment.rstrip("."): found[three[moment]] for moment in MOMENTS}
        | {"step": num_updates.clone()}
        for name, three in boxes.items()
    }
    model = {name: found[three[""]] for name, three in boxes.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process is meant so
        save({"model": model, "optimizer": {"state": state}}, checkpoint_id=folder, no_dist=True)
