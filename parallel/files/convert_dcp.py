"""Torch distributed checkpoints as weights of a model, and a whole state as one of them."""

import warnings
from pathlib import Path

from remesh.parallel.files.convert import Read
from remesh.parallel.files.convert_names import names_in
from remesh.parallel.files.dcp import boxes_in, located
from remesh.parallel.files.weights import Weights, check_tied, weights_of
from remesh.parallel.holding.shard_state import COUNT, whole_state
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
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

    It holds {"model": {name: weight}, "optimizer": {"state": {name: {slot: tensor, "step"}}}}, all
    fp32, with the slots of torch's AdamW, which are ours, and `step` the number of updates.
    Cost: memory for the whole state; some seconds to import torch's module.
    Raises: OSError where the folder takes no files.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415 - seconds
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - seconds

    shapes = parameter_shapes(config)
    read_boxes = read(whole_state(shapes, AdamW.slots))
    found = {box.name: tensor for box, tensor in read_boxes.items()}
    num_updates = found[COUNT][0].float()
    state = {
        name: {slot.name: found[slot.tensor(name)] for slot in AdamW.slots}
        | {"step": num_updates.clone()}
        for name in shapes
    }
    model = {name: found[name] for name in shapes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process is meant so
        try:
            values = {"model": model, "optimizer": {"state": state}}
            save(values, checkpoint_id=folder, no_dist=True)
        except CheckpointException as told:  # no Exception, which nobody else would catch
            raise _cause(next(iter(told.failures.values()))[0]) from None


def _cause(error: BaseException) -> BaseException:
    """What the disk said, where that is behind it: torch's writer fails again as it closes."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__context__
    return behind or error
