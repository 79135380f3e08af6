"""What the parameters are called elsewhere. Each of ours is one tensor there, of the same shape.

Queries and keys need no shuffling: channels i and i + D/2 form a rotary pair in both, which is not
so in the files that Meta publishes (there 2i and 2i + 1 do).
"""

from collections.abc import Collection, Iterable, Mapping

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes

EMBEDDING = "embedding.weight"
HEAD = "head.weight"

_TOP = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
}
_IN_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
# Not parameters, though some files have them.
_TABLES = ".rotary_emb.inv_freq"


def hugging_face_name(name: str) -> str:
    """What Hugging Face's Llama and Qwen3 call the parameter `name`."""
    module, _, part = name.rpartition(".")
    if not module.startswith("layers."):
        return f"{_TOP[module]}.{part}"
    _, layer, own = module.split(".", 2)
    return f"model.layers.{layer}.{_IN_LAYER[own]}.{part}"


def names_in(found: Collection[str], config: ModelConfig) -> dict[str, str]:
    """Which of the names found is which of our parameters, by our names.

    They are ours or Hugging Face's, all behind one prefix ("", "model.", "module.", ...).
    Raises: CheckpointError if they are neither, if one is missing, or if the layers have others.
    """
    ours = parameter_shapes(config)
    for table in ({name: hugging_face_name(name) for name in ours}, {name: name for name in ours}):
        prefixes = _prefixes(found, table[EMBEDDING])
        if prefixes:
            names = {name: prefixes[0] + theirs for name, theirs in table.items()}
            _check(found, names, prefixes[0])
            return names
    raise CheckpointError(
        f"no tensor is called {EMBEDDING} or {hugging_face_name(EMBEDDING)}, but there is "
        f"{min(found, default='none at all')}; save the model under Remesh's or Hugging Face's "
        "names"
    )


def head_beside(names: Mapping[str, str]) -> str:
    """What the head would be called in the files in which the parameters have these names."""
    embedding = names[EMBEDDING]
    anchor, head = hugging_face_name(EMBEDDING), hugging_face_name(HEAD)
    if not embedding.endswith(anchor):
        anchor, head = EMBEDDING, HEAD
    return embedding.removesuffix(anchor) + head


def _prefixes(found: Collection[str], anchor: str) -> list[str]:
    ends = [name.removesuffix(anchor) for name in found if name.endswith(anchor)]
    return sorted((end for end in ends if not end or end.endswith(".")), key=len)


def _check(found: Iterable[str], names: Mapping[str, str], prefix: str) -> None:
    found = set(found)
    missing = [theirs for theirs in names.values() if theirs not in found]
    if missing:
        raise CheckpointError(
            f"{missing[0]} is missing{_and_more(missing)}; bring the file back that holds it, or "
            "set the [model] table to the model that is there"
        )
    in_layers = tuple(prefix + start for start in ("layers.", "model.layers."))
    known = set(names.values())
    others = sorted(
        name for name in found - known if name.startswith(in_layers) and not name.endswith(_TABLES)
    )
    if others:
        raise CheckpointError(
            f"{others[0]} is no part of this model{_and_more(others)}; set the [model] table to "
            "the model that is there"
        )


def _and_more(names: list[str]) -> str:
    return f", and {len(names) - 1} more" if len(names) > 1 else ""
