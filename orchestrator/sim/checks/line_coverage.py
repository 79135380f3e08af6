"""Which lines of the machines no simulated run has executed."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from remesh.orchestrator.control import controller

ROOMS = ("control", "worker", "vault")
_ORCHESTRATOR = Path(controller.__file__).resolve().parents[1]
_WATCHED = tuple(str(_ORCHESTRATOR / room) for room in ROOMS)


@dataclass(slots=True)
class LineCoverage:
    """Watches functions of the machines while `during` runs, which makes it some times slower.

    `seen` has the lines that ran, by path; `lines_of` the same by the names that code gives itself.
    """

    seen: dict[str, set[int]] = field(default_factory=dict)
    lines_of: dict[str, set[int] | None] = field(default_factory=dict)

    def during(self, action: Callable[[], None]) -> None:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            action()
        finally:
            sys.settrace(before)

    def missing(self) -> Iterator[str]:
        """Such as "control/handlers/ticking.py: 41, 57", for each file with lines never run."""
        for room in ROOMS:
            for path in sorted((_ORCHESTRATOR / room).rglob("*.py")):
                never = sorted(_lines_of(path) - self.seen.get(str(path), set()))
                if never:
                    where = path.relative_to(_ORCHESTRATOR)
                    yield f"{where}: {', '.join(map(str, never))}"

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self.lines_of:
            path = str(Path(name).resolve())
            watched = path.startswith(_WATCHED)
            self.lines_of[name] = self.seen.setdefault(path, set()) if watched else None
        lines = self.lines_of[name]
        if lines is None:
            return None

        def note(inner: FrameType, _event: str, _argument: Any) -> Any:
            lines.add(inner.f_lineno)
            return note

        return note


def _lines_of(path: Path) -> set[int]:
    """The lines of all functions of a file: what stands outside of them runs at import."""
    code = compile(path.read_text(), str(path), "exec")
    return {line for inner in _functions(code) for line in _lines(inner)}


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 1:  # of a function, not of a class' body
                yield constant
            yield from _functions(constant)


def _lines(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line and line > code.co_firstlineno}
