"""What goes between an agent and its warm process, beside the descriptors that go with it."""

import os
import pickle
import socket
from dataclasses import dataclass
from typing import Any

from remesh.actors.node.seats import AnySeat

_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSeat:
    """Fork a process for this seat; the end of its line goes along."""

    number: int
    seat: AnySeat


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCare:
    """A process of one before, by the descriptor that goes along: end it with the agent too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """All is imported; forking takes milliseconds from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowded:
    """It cannot fork any more: these threads are there beside its own."""

    threads: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The process is there; the descriptor that goes along stands for it and no other."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The process was reaped. `code` is its exit code, or less than 0 the signal that ended it."""

    pid: int
    code: int


def say(line: socket.socket, word: object, *descriptors: int) -> None:
    """Raises: OSError if the other side is gone."""
    socket.send_fds(line, [pickle.dumps(word)], list(descriptors))


def heard_word(line: socket.socket) -> tuple[Any, list[int]]:
    """The next word, None if the other side is gone, and what came along. Raises: OSError."""
    data, descriptors, _, _ = socket.recv_fds(line, _MOST_BYTES, 1)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return pickle.loads(data) if data else None, descriptors  # noqa: S301 - of a process of ours


def code_of(found: "os.waitid_result") -> int:
    exited = found.si_code == os.CLD_EXITED
    return found.si_status if exited else -found.si_status
