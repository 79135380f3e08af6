"""Whether another version of Remesh trains the same: two trees, the same jobs, on this machine.

Both examples are run by the tree that is named and by this one, undisturbed and with a worker and
a node killed. Compared are the losses, the digests of the samples of each step, and the bytes of
every tensor of each committed checkpoint, whatever mesh has written it. Exit code 1 if anything
differs.

    git worktree add ../before REVISION
    python benchmarks/same_curve.py ../before [--keep FOLDER]
"""

import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).parents[1]
EXAMPLES = ("tiny", "sharded")
KILLS = {"calm": (), "hurt": ("--kill", "worker@20", "--kill", "node@40")}
OVERRIDES = ("checkpoint.keep=100", "checkpoint.every=10")
TYPES = {"F32": np.float32, "I64": np.int64}


def train(tree: Path, out: Path, example: str, kind: str) -> Path:
    """Runs an example with the code of a tree; gives its folder, with report.json in it."""
    folder = out / f"{example}-{kind}"
    settings = [
        word for text in (*OVERRIDES, f"checkpoint.dir={folder}") for word in ("--set", text)
    ]
    report = out / f"{example}-{kind}.json"
    command = [sys.executable, "-m", "remesh.cli", "run", f"examples/{example}.toml", "--fresh"]
    environment = {**os.environ, "PYTHONPATH": str(tree / ".typing")}
    subprocess.run(
        [*command, *settings, "--report", str(report), *KILLS[kind]],
        cwd=tree,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder


def told(folder: Path) -> dict[str, object]:
    """What a run has trained: losses and digests by step, hashes of the state by checkpoint."""
    report = json.loads(folder.with_suffix(".json").read_text())
    return {
        "losses": report["losses"],
        "samples": report["samples"],
        "digests": dict(digests(folder)),
        "tensors": {step: tensors(path) for step, path in checkpoints(folder)},
    }


def digests(folder: Path) -> Iterator[tuple[int, str]]:
    """Of every step that stands in the journals."""
    for journal in sorted((folder / "journal").iterdir()):
        for line in journal.read_text().splitlines():
            yield from found(json.loads(line))


def found(value: object) -> Iterator[tuple[int, str]]:
    """(step, digest) of every record inside a JSON value, however it is nested there."""
    if isinstance(value, dict):
        did = value.get("did")  # where a version keeps a step's result apart
        inner = {**value, **did} if isinstance(did, dict) else value
        if {"step", "digest", "loss"} <= inner.keys():
            yield int(inner["step"]), str(inner["digest"])
        for one in value.values():
            yield from found(one)
    elif isinstance(value, list):
        for one in value:
            yield from found(one)


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    paths = sorted(folder.glob("step-*"))
    return [(int(path.name.split("-")[1].split(".")[0]), path) for path in paths]


def tensors(checkpoint: Path) -> dict[str, str]:
    """A hash of each whole tensor, put together from the boxes in all files."""
    whole: dict[str, np.ndarray] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        described = json.loads(header.pop("__metadata__")["remesh"])
        for part, (_, entry) in zip(described["fragments"], in_order(header), strict=True):
            start, stop = (8 + length + offset for offset in entry["data_offsets"])
            box = np.frombuffer(content[start:stop], TYPES[entry["dtype"]]).reshape(part["sizes"])
            empty = np.full(part["global_shape"], -1, box.dtype)
            where = tuple(
                slice(first, first + size)
                for first, size in zip(part["offsets"], part["sizes"], strict=True)
            )
            whole.setdefault(part["name"], empty)[where] = box
    return {name: hashlib.sha256(whole[name].tobytes()).hexdigest() for name in sorted(whole)}


def in_order(header: dict[str, dict[str, list[int]]]) -> list[tuple[str, dict[str, list[int]]]]:
    return sorted(header.items(), key=lambda item: item[1]["data_offsets"])


def differences(old: dict[str, object], new: dict[str, object]) -> list[str]:
    return [name for name in old if old[name] != new[name]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("old", type=Path, help="the tree of the other version")
    parser.add_argument(
        "--keep", type=Path, help="a folder for both versions' runs; taken up again"
    )
    arguments = parser.parse_args()
    different = 0
    with tempfile.TemporaryDirectory() as scratch:
        out = arguments.keep or Path(scratch)
        for example in EXAMPLES:
            for kind in KILLS:
                results = []
                for name, tree in (("old", arguments.old.resolve()), ("new", HERE)):
                    folder = (out / name).resolve() / f"{example}-{kind}"
                    if not folder.with_suffix(".json").exists():
                        folder.parent.mkdir(parents=True, exist_ok=True)
                        train(tree, folder.parent, example, kind)
                    results.append(told(folder))
                wrong = differences(*results)
                different += len(wrong)
                said = f"differ in {', '.join(wrong)}" if wrong else "are the same"
                steps, saved = len(results[0]["digests"]), len(results[0]["tensors"])
                print(f"{example}, {kind}: {steps} steps and {saved} checkpoints {said}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
