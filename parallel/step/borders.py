"""What crosses the borders between stages in one step: made here, on its way, or arrived.

Sends are left alone until they are done, or the step needs no more compute; what they send is not
touched meanwhile. On each pipe the next receive is posted ahead, so that a message travels while
this rank computes. Where a rank holds the stages on both sides of a border nothing travels.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from remesh.parallel.groups.group import PendingOperation
from remesh.parallel.groups.pipes import Pipe, exchange
from remesh.parallel.plan.schedules.operations import (
    BorderMessage,
    Exchange,
    Operation,
    Receive,
    Send,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderShape:
    """What every message is: an activation of one microbatch, or the gradient of one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coming:
    """A receive that has been posted."""

    message: BorderMessage
    buffer: Tensor
    operation: PendingOperation


class Borders:
    """`put` what has been computed, `take` what to compute from, `carry_out` what is between."""

    def __init__(
        self, schedule: Sequence[Operation], pipes: Mapping[int, Pipe], border_shape: BorderShape
    ) -> None:
        self._pipes = pipes
        self._border_shape = border_shape
        self._here: dict[BorderMessage, Tensor] = {}
        self._sent: deque[PendingOperation] = deque()
        self._awaited = _received(schedule)
        self._coming: dict[int, _Coming] = {}

    def put(self, message: BorderMessage, tensor: Tensor) -> None:
        self._here[message] = tensor.detach()

    def take(self, message: BorderMessage) -> Tensor:
        return self._here.pop(message)

    def carry_out(self, operation: Send | Receive | Exchange) -> None:
        """Raises: Cancelled, GroupError."""
        for peer in self._awaited:
            self._post(peer)
        match operation:
            case Send(peer=peer, message=message):
                self._send(peer, message)
            case Receive(peer=peer, message=message):
                self._receive(peer, message)
            case Exchange(peer=peer, send=sent, receive=received):
                self._send(peer, sent)
                self._receive(peer, received)
            case _:
                assert_never(operation)

    def finish(self) -> None:
        """Returns once all has been sent. Raises: Cancelled, GroupError."""
        while self._sent:
            self._sent.popleft().wait()
        assert not self._here, f"{len(self._here)} messages went nowhere"

    def _send(self, peer: int, message: BorderMessage) -> None:
        while self._sent and self._sent[0].is_done:
            self._sent.popleft().wait()
        tensor = self._here.pop(message).contiguous()
        self._sent += exchange([(self._pipes[peer], tensor)], [])

    def _receive(self, peer: int, message: BorderMessage) -> None:
        coming = self._coming.pop(peer)
        assert coming.message == message, (coming.message, message)
        coming.operation.wait()
        self._here[message] = coming.buffer
        self._post(peer)

    def _post(self, peer: int) -> None:
        """Begins to receive the next message of a peer, if there is one and none is coming."""
        if peer in self._coming or not self._awaited[peer]:
            return
        border_shape = self._border_shape
        buffer = torch.empty(
            border_shape.shape, dtype=border_shape.dtype, device=border_shape.device
        )
        [operation] = exchange([], [(self._pipes[peer], buffer)])
        message = self._awaited[peer].popleft()
        self._coming[peer] = _Coming(message=message, buffer=buffer, operation=operation)


def _received(schedule: Sequence[Operation]) -> dict[int, deque[BorderMessage]]:
    """What comes from each peer, in order."""
    found: dict[int, deque[BorderMessage]] = {}
    for operation in schedule:
        match operation:
            case Receive(peer=peer, message=message) | Exchange(peer=peer, receive=message):
                found.setdefault(peer, deque()).append(message)
            case _:
                pass
    return found
