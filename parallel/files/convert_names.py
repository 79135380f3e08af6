"""What the parameters are called elsewhere. Each of ours is one tensor there, of the same shape,
but for experts: ours lie in one tensor, there each has its own. Such a part of ours is called by
the number of its expert, as in `layers.0.ffn.experts.up.weight#3`.

Queries and keys need no shuffling: channels i and i + D/2 form a rotary pair in both, which is not
so in the files that Meta publishes (there 2i and 2i + 1 do).

A checkpoint may hold the model more than once: what is trained beside an average of it, a student
beside its teacher, weights beside their moments. Each copy stands behind a prefix of its own, and
which of them was meant is asked and never guessed.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.state.bounded_json import brief, shown
from remesh.parallel.state.fragments import Fragment, whole

EMBEDDING = "embedding.weight"
HEAD = "head.weight"

# Modules that hold another one put their attribute's name into the names of its parameters:
# torch.compile, DistributedDataParallel, FSDP and activation checkpointing.
WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})

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
    "ffn.router": "block_sparse_moe.gate",
    "ffn.experts.gate": "block_sparse_moe.experts.{}.w1",
    "ffn.experts.up": "block_sparse_moe.experts.{}.w3",
    "ffn.experts.down": "block_sparse_moe.experts.{}.w2",
}
_STACKED = 3  # dimensions of a tensor of experts
# Not parameters, though some files have them.
_TABLES = ".rotary_emb.inv_freq"
_MOST_CHOICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What our parameters, or parts of them, are called in the files, by our names.

    `head` is what a tied model has there beside its embedding, if it has: a head of its own.
    """

    names: Mapping[str, str]
    head: str | None


def hugging_face_name(name: str) -> str:
    """What Hugging Face's Llama, Qwen3 and Mixtral call a parameter or part, if they have it."""
    name, _, expert = name.partition("#")
    module, _, part = name.rpartition(".")
    if not module.startswith("layers."):
        return f"{_TOP.get(module, module)}.{part}"
    _, layer, own = module.split(".", 2)
    return f"model.layers.{layer}.{_IN_LAYER[own].format(expert)}.{part}"


def parts_of(fragment: Fragment) -> Iterator[tuple[str, Fragment]]:
    """The tensors that Hugging Face makes of a whole one, by our names of the parts."""
    if len(fragment.global_shape) < _STACKED:
        yield fragment.name, fragment
        return
    for expert in range(fragment.global_shape[0]):
        box = fragment.part((expert, 0, 0), (1, *fragment.sizes[1:]))
        yield f"{fragment.name}#{expert}", box


def as_part(name: str, fragment: Fragment, shape: Sequence[int]) -> Fragment:
    """A box of the tensor that is our part `name` as a box of ours, which has this shape."""
    whole_name, _, expert = name.partition("#")
    if not expert:
        return replace(fragment, name=whole_name)
    return replace(
        fragment,
        name=whole_name,
        global_shape=(shape[0], *fragment.global_shape),
        offsets=(int(expert), *fragment.offsets),
        sizes=(1, *fragment.sizes),
    )


def names_in(found: Collection[str], config: ModelConfig, key: str | None = None) -> Naming:
    """Which of the names found is which of our parameters.

    They are ours or Hugging Face's, all behind one prefix ("", "model.", "module.", ...), and
    what wrappers have put in between is passed over. `key` is the prefix of the copy to take.

    Cost: linear in the names found, whatever the model claims to be.
    Raises: CheckpointError if they are neither, if there are several copies and none is chosen, if
    a parameter is missing, or if the layers have others.
    """
    copies = _copies(found)
    copy = _chosen(copies, found, key)
    others = tuple(other.prefix for other in copies if len(other.prefix) > len(copy.prefix))
    there = _There(found, copy.prefix, others)
    in_parts = copy.called is not _own_name
    num_experts = config.num_experts * config.num_expert_layers if in_parts else 0
    for count, what in ((config.num_layers, "layers"), (num_experts, "experts in all")):
        if count > len(found):
            raise CheckpointError(
                f"the model has {count} {what}, and the files have {len(found)} tensors; bring all "
                "of its files, or set the [model] table to the model that is there"
            )
    table = {name: copy.called(name) for name in _names(config, in_parts=in_parts)}
    names = {name: there.find(theirs) for name, theirs in table.items()}
    _check(there, copy, table, names)
    return Naming(
        names={name: theirs for name, theirs in names.items() if theirs is not None},
        head=there.find(copy.called(HEAD)) if config.tied else None,
    )


def _names(config: ModelConfig, *, in_parts: bool) -> list[str]:
    shapes = parameter_shapes(config)
    if not in_parts:
        return list(shapes)
    fragments = (whole(name, shape, "float32") for name, shape in shapes.items())
    return [part for fragment in fragments for part, _ in parts_of(fragment)]


@dataclass(frozen=True, slots=True)
class _ModelCopy:
    """A copy of the model behind a prefix; `called` gives the names that it uses."""

    prefix: str
    called: Callable[[str], str]

    @property
    def layers(self) -> str:
        """What the names of all parameters in layers begin with."""
        return self.called("layers.0.ffn_norm.weight").partition("0.")[0]


class _There:
    """The names behind a prefix, without what wrappers have put into them.

    Wrapped names behind one of the `others` are those of another copy.
    """

    def __init__(self, found: Iterable[str], prefix: str, others: tuple[str, ...]) -> None:
        self.prefix = prefix
        self.by_bare: dict[str, list[str]] = defaultdict(list)
        for name in dict.fromkeys(found):
            bare = _bare(name[len(prefix) :])
            if name.startswith(prefix) and (name == prefix + bare or not name.startswith(others)):
                self.by_bare[bare].append(name)

    def find(self, bare: str) -> str | None:
        names = self.by_bare.get(bare, [])
        if len(names) > 1:
            raise CheckpointError(
                f"{brief(names[0])} and {brief(names[1])} are the same parameter; save the model "
                "with one of them"
            )
        return names[0] if names else None


def _copies(found: Iterable[str]) -> list[_ModelCopy]:
    """In the order of their prefixes."""
    styles = {called(EMBEDDING): called for called in (hugging_face_name, _own_name)}
    copies = {
        _ModelCopy(prefix, called)
        for name in found
        for anchor, called in styles.items()
        if (prefix := _before(name, anchor)) is not None
    }
    return sorted(copies, key=lambda copy: copy.prefix)


def _own_name(name: str) -> str:
    return name


def _before(name: str, anchor: str) -> str | None:
    """What stands before `anchor` in a name that ends with it, wrappers within passed over."""
    parts, wanted = name.split("."), anchor.split(".")
    while wanted:
        part = parts.pop() if parts else ""
        if part == wanted[-1]:
            wanted.pop()
        elif part not in WRAPPERS:
            return None
    return "".join(f"{part}." for part in parts)


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _chosen(copies: Sequence[_ModelCopy], found: Collection[str], key: str | None) -> _ModelCopy:
    if not copies:
        raise _nothing_there(found)
    prefix = f"{key.strip('.')}.".removeprefix(".") if key is not None else None
    fit = [copy for copy in copies if prefix in (None, copy.prefix)]
    if len(fit) == 1:
        return fit[0]
    choices = sorted({f"--key {quote(brief(copy.prefix.rstrip('.')))}" for copy in copies})
    listed = " or ".join(choices[:_MOST_CHOICES]) + _and_more(choices[_MOST_CHOICES - 1 :])
    if not fit:
        raise CheckpointError(f"--key {key}: no copy of the model is there; use {listed}")
    raise CheckpointError(
        f"the files hold {len(fit)} copies of the model, and only one can be meant; choose it with "
        f"{listed}"
    )


def _nothing_there(found: Collection[str]) -> CheckpointError:
    for anchor in (EMBEDDING, hugging_face_name(EMBEDDING)):
        for name in found:
            if infix := _infix(name, anchor):
                return _unknown_infix(name, infix)
    seen = brief(min(found, default="none at all"))
    return CheckpointError(
        f"no tensor is called {EMBEDDING} or {hugging_face_name(EMBEDDING)}, but there is {seen}; "
        "save the model under Remesh's or Hugging Face's names"
    )


def _check(
    there: _There, copy: _ModelCopy, table: Mapping[str, str], names: Mapping[str, str | None]
) -> None:
    missing = [theirs for name, theirs in table.items() if names[name] is None]
    if missing:
        for bare, wrapped in there.by_bare.items():
            if infix := _infix(bare, missing[0]):
                raise _unknown_infix(wrapped[0], infix)
        raise CheckpointError(
            f"{there.prefix}{missing[0]} is missing{_and_more(missing)}; bring the file back that "
            "holds it, or set the [model] table to the model that is there"
        )
    in_layers = {
        bare
        for bare in there.by_bare
        if bare.startswith(copy.layers) and not bare.endswith(_TABLES)
    }
    others = sorted(in_layers.difference(table.values()))
    if others:
        raise CheckpointError(
            f"{brief(there.by_bare[others[0]][0])} is no part of this model{_and_more(others)}; "
            "set the [model] table to the model that is there"
        )


def _infix(name: str, wanted: str) -> str:
    """What stands in the middle of `wanted` in a name that has all its parts in their order."""
    parts, rest = _bare(name).split("."), wanted.split(".")
    if rest[0] not in parts or parts[-1] != rest[-1]:
        return ""
    between = []
    for part in parts[parts.index(rest[0]) :]:
        if rest and part == rest[0]:
            rest.pop(0)
        else:
            between.append(part)
    return "" if rest else "".join(f"{part}." for part in between)


def _unknown_infix(name: str, infix: str) -> CheckpointError:
    return CheckpointError(
        f"{brief(name)} has {shown(infix)} in its middle, which no wrapper adds that is known here "
        f"({', '.join(sorted(WRAPPERS))}); save the parameters of the model within"
    )


def _and_more(names: list[str]) -> str:
    return f", and {len(names) - 1} more" if len(names) > 1 else ""
