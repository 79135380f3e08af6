"""The run that a fresh start has set aside: nothing of it is lost until the new one has finished.

It lies in `.old-N`, inside of the place that it was in, as a run's folder of its own that can be
taken up as any other. The claims stay where they are: they are the fence against a controller that
may be alive somewhere. Inside, since a folder can be a volume's root and a bucket's credentials may
reach no further than the prefix that they were given. An object store moves by copying within
itself, so there a fresh start takes a while for a large run. Moving its manifests only, as the mark
of a checkpoint, would cost nothing, but leave two runs' shards in one folder, told apart by a
record only.

A run has up to two places, its folder and where its checkpoints lie, and both are set aside or
neither: a record of what is to be moved is put into each before its first move, and once all is
moved the first place says so, which decides. Whoever comes after a crash finishes or undoes it.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from remesh.actors.storage.run_place import RunPlace
from remesh.actors.storage.storage_url import inside
from remesh.orchestrator.control.words.run_format import to_file, unstamped
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.state.bounded_json import parse

OLD = ".old-"
MOVING = ".moving.json"
MOVED = ".moved.json"

# All that a run looks at begins so. What else lies in its folder, a volume's lost+found say, is
# none of its business.
_PREFIXES = (
    "step-",
    "journal/",
    "faults/",
    "logs/",
    "fingerprint.",
    "bits.",
    "run.",
    "imported.",
)
_OWN = re.compile(
    r"step-\d+\.gen-\d+\.start-\d+/(manifest\.json|gone-back\.json|rank-\d+-of-\d+\.safetensors)"
    r"|journal/\d+\.jsonl|journal/start-\d+/[\d.-]+\.jsonl|logs/[^/.][^/]*\.log|faults/\w+-\d+\.json"
    r"|(fingerprint|bits|run|imported)\.json",
    re.ASCII,
)
_RECORD = re.compile(r"\.old-(\d+)/(\.moving\.json|\.moved\.json)", re.ASCII)
_MAX_PATHS = 1 << 22
_MAX_BYTES = 64 * _MAX_PATHS
_AT_ONCE = 8  # an object store copies as many files side by side


def set_aside(places: Sequence[RunPlace]) -> int | None:
    """The number of the old run, None where there is none. The first place decides."""
    found = [(place, _own(place)) for place in places]
    if not any(paths for _, paths in found):
        return None
    number = 1 + max((number for place in places for number, _ in _records(place)), default=0)
    for place, paths in found:
        place.put(_in(number, MOVING), to_file({"paths": paths}))
        _each(paths, partial(_out, place, number))
    for place, _ in found:
        _settle(place, number)
    return number


def told(number: int, run_dir: Path, url: str | None) -> str:
    """Where an old run is, and how it comes back."""
    name = f"{OLD}{number}"
    words = [f"checkpoint.dir={run_dir / name}"]
    if url:
        words.append(f"checkpoint.url={inside(url, name)}")
    sets = " ".join(f"--set {shlex.quote(word)}" for word in words)
    return (
        f"the run before lies in {run_dir / name} until this one has finished; "
        f"take it up with: {sets}"
    )


def heal(places: Sequence[RunPlace]) -> None:
    """A move that a crash has cut short is finished if the first place has it done, else undone."""
    records = [set(_records(place)) for place in places]
    for number in sorted({number for found in records for number, name in found if name == MOVING}):
        for place, found in zip(places, records, strict=True):
            if (number, MOVING) not in found:
                continue
            if (number, MOVED) in records[0]:
                _settle(place, number)
            else:
                _undo(place, number)


def discard(places: Iterable[RunPlace]) -> None:
    """Delete old runs, file by file as their records name them; a manifest before its shards.

    What cannot be deleted now is left for the next time.
    """
    with suppress(OSError, ValueError, UserError):
        for place in places:
            _discard(place)


def keep(places: Iterable[RunPlace]) -> None:
    """Who takes up an old run where it lies has it as its own: no other run discards it."""
    for place in places:
        if MOVED in place.list(MOVED):
            place.delete(MOVED)


def _discard(place: RunPlace) -> None:
    for number in sorted(number for number, name in _records(place) if name == MOVED):
        for path in sorted(_recorded(place, number, MOVED)):
            place.delete(_in(number, path))
        place.delete(_in(number, MOVED))


def _own(place: RunPlace) -> list[str]:
    return [path for prefix in _PREFIXES for path in place.list(prefix) if _OWN.fullmatch(path)]


def _records(place: RunPlace) -> list[tuple[int, str]]:
    found = map(_RECORD.fullmatch, place.list(OLD))
    return [(int(record[1]), record[2]) for record in found if record]


def _recorded(place: RunPlace, number: int, name: str) -> list[str]:
    path = _in(number, name)
    values = parse(place.get(path), max_bytes=_MAX_BYTES, max_values=_MAX_PATHS)
    paths: list[str] = unstamped(values, path)["paths"]
    return [path for path in paths if _OWN.fullmatch(path)]


def _settle(place: RunPlace, number: int) -> None:
    """All is moved, or the other place would not have said that it is."""
    place.put(_in(number, MOVED), place.get(_in(number, MOVING)))
    place.delete(_in(number, MOVING))


def _undo(place: RunPlace, number: int) -> None:
    paths = _recorded(place, number, MOVING)
    _each(paths, partial(_back, place, number))
    place.delete(_in(number, MOVING))


def _out(place: RunPlace, number: int, path: str) -> None:
    place.move(path, _in(number, path))


def _back(place: RunPlace, number: int, path: str) -> None:
    with suppress(FileNotFoundError):  # it had not been moved yet
        place.move(_in(number, path), path)


def _each(paths: Iterable[str], action: Callable[[str], None]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        for _ in workers.map(action, paths):
            pass


def _in(number: int, path: str) -> str:
    return f"{OLD}{number}/{path}"
