"""A storm on the files of a run: each truncated, flipped, emptied, deleted, replaced, by a seed.

What a command may do then: end with a documented code and at most one line of an error, or recover.
It never says what is not proven: a step, a loss or a sample that the whole run did not have.
"""

import json
import os
import random
import shutil

CODES = (0, 2, 3, 4, 5)
WORDS = ("Traceback", "a bug in remesh")


def _flip(path, rng):
    data = bytearray(path.read_bytes() or b"\0")
    for _ in range(rng.choice((1, 1, 3))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _cut(path, rng):
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


def _without_a_piece(path, rng):
    data = path.read_bytes()
    start = rng.randrange(len(data) + 1)
    path.write_bytes(data[:start] + data[start + rng.randrange(1, 400) :])


def _without_a_line(path, rng):
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    path.write_bytes(b"".join(lines))


def _swapped_lines(path, rng):
    lines = path.read_bytes().splitlines(keepends=True)
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    path.write_bytes(b"".join(lines))


def _instead(make):
    def change(path, _rng):
        path.unlink()
        make(path)

    return change


def _copied(path, rng):
    shutil.copy(path, path.with_name(rng.choice(("copy", "000009")) + path.suffix))


CHANGES = {
    "flipped": _flip,
    "cut": _cut,
    "without a piece": _without_a_piece,
    "without a line": _without_a_line,
    "with two lines swapped": _swapped_lines,
    "emptied": lambda path, _rng: path.write_bytes(b""),
    "noise": lambda path, rng: path.write_bytes(rng.randbytes(300)),
    "brackets": lambda path, _rng: path.write_bytes(b"[" * 50_000),
    "another object": lambda path, _rng: path.write_bytes(b'{"format_version": 1}'),
    "deleted": lambda path, _rng: path.unlink(),
    "a pipe": _instead(os.mkfifo),
    "a folder": _instead(lambda path: path.mkdir()),
    "a link to nowhere": _instead(lambda path: path.symlink_to(path.with_name("nowhere"))),
    "an endless device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "copied": _copied,
}


def files_of(run):
    """What a run has, by names that are the same in each copy."""
    paths = (path for path in run.run_dir.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(run.run_dir)) for path in paths)


def mutations(run, number, seed):
    """So many (file, kind of change), spread over both: every file meets every kind in time."""
    rng = random.Random(seed)
    pairs = [(file, kind) for file in files_of(run) for kind in CHANGES]
    rng.shuffle(pairs)
    return pairs[:number]


def mutate(run, file, kind, seed):
    CHANGES[kind](run.run_dir / file, random.Random(f"{file} {kind} {seed}"))


def check(run, truth):
    """Every command against the changed run; `truth` is the report of the whole one."""
    path = run.folder / "report.json"
    said = [run.take_up("--report", path)]
    if path.exists():
        check_report(json.loads(path.read_text()), truth)
    said.append(run.take_up("--set", "train.steps=20"))
    said += [run.remesh(word, run.run_dir) for word in ("status", "events")]
    said += [run.remesh("checkpoint", word, run.run_dir) for word in ("ls", "show", "verify")]
    for one in said:
        assert one.code in CODES, one
        assert one.err.count("\n") <= 1, one
        assert not any(word in one.text for word in WORDS), one
    return said


def check_report(report, truth):
    """What it tells is so, or it tells that it does not know."""
    assert report["status"] == "finished"
    assert report["steps"] == truth["steps"]
    for loss, right in zip(report["losses"], truth["losses"], strict=True):
        assert loss in (right, None)
    missing = report["losses"].count(None)
    samples = report["samples"]
    assert samples["unproven"] == missing * truth["samples"]["expected"] // truth["steps"]
    if missing:
        assert (samples["lost"], samples["repeated"], samples["digest"]) == (None, None, None)
        assert report["unproven_steps"]
    else:
        assert samples == truth["samples"]
