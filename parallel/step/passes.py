"""Passes of microbatches through the stages of a rank: what each takes, and what it leaves."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from remesh.parallel.plan.schedules.operations import (
    Backward,
    BorderMessage,
    Forward,
    InputBackward,
    KeepCompany,
    MicrobatchPass,
    Overlap,
    WeightBackward,
)
from remesh.parallel.step.assembly import Assembly
from remesh.parallel.step.borders import Borders
from remesh.parallel.step.stage import BlockRun, Passage, run_side_by_side
from remesh.parallel.step.vote import NO_SAMPLES, Ballot
from remesh.parallel.step.work import SampleSums, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A microbatch as it was read: tokens, one more than the model sees, and their digests."""

    tokens: Tensor
    samples: SampleSums


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """What a stage computes from; in the last one also its targets, and whose they are."""

    x: Tensor
    targets: Tensor | None = None
    samples: SampleSums = NO_SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Going:
    """A pass that has what it needs: its parts, and what to do once they are done."""

    parts: Iterator[BlockRun]
    end: Callable[[], object]


class Passes:
    """Carries out the passes of one step. Losses go to the ballot, all else over the borders."""

    def __init__(self, work: Work, assembly: Assembly, borders: Borders, ballot: Ballot) -> None:
        self._work = work
        self._assembly = assembly
        self._borders = borders
        self._ballot = ballot
        self._batches: dict[int, _Batch] = {}
        self._passages: dict[tuple[int, int], Passage] = {}

    def carry_out(self, operation: MicrobatchPass) -> None:
        """Raises: Cancelled, GroupError; what `fill` raises."""
        match operation:
            case Forward():
                self._forward(operation)
            case Backward():
                self._backward(operation)
            case InputBackward():
                self._backward_input(operation)
            case WeightBackward():
                self._backward_weights(operation)
            case KeepCompany(what=what, stage=stage, ends_leaf=ends_leaf):
                self._assembly.stages[stage].keep_company(what, ends_leaf=ends_leaf)
            case Overlap():
                self._overlap(operation)
            case _:
                assert_never(operation)

    def _forward(self, operation: Forward) -> None:
        given = self._input(operation)
        passage = self._assembly.stages[operation.stage].forward(given.x, given.targets)
        self._leave(operation, given, passage)

    def _backward(self, operation: Backward) -> None:
        passage, gradient = self._passages.pop(_key(operation)), self._gradient(operation)
        of_input = self._assembly.stages[operation.stage].backward(
            passage, gradient, operation.leaf, ends_leaf=operation.ends_leaf
        )
        self._hand_back(operation, of_input)

    def _backward_input(self, operation: InputBackward) -> None:
        stage, gradient = self._assembly.stages[operation.stage], self._gradient(operation)
        of_input = stage.backward_input(self._passages[_key(operation)], gradient)
        self._hand_back(operation, of_input)

    def _backward_weights(self, operation: WeightBackward) -> None:
        self._assembly.stages[operation.stage].backward_weights(
            self._passages.pop(_key(operation)), operation.leaf, ends_leaf=operation.ends_leaf
        )

    def _overlap(self, operation: Overlap) -> None:
        """The backward begins: then a large part of the other pass goes on beside each message.

        Attention beside the first one, experts beside the next two, backward of attention beside
        the last one.
        """
        forward, backward = self._going(operation.forward), self._going(operation.backward)
        turns, gathering = self._assembly.turns, self._assembly.gathering
        with turns.of_two(operation.forward, operation.backward) as run:
            run_side_by_side(gathering, run, forward.parts, backward.parts)
        forward.end()
        backward.end()

    def _going(self, operation: Forward | Backward | KeepCompany) -> _Going:
        stage = self._assembly.stages[operation.stage]
        match operation:
            case Forward():
                given, passage = self._input(operation), Passage()
                parts = stage.forward_parts(passage, given.x, given.targets)
                return _Going(parts=parts, end=lambda: self._leave(operation, given, passage))
            case Backward(leaf=leaf, ends_leaf=ends_leaf):
                own = self._passages.pop(_key(operation))
                own.gradient = self._gradient(operation)
                parts = stage.backward_parts(own, leaf, ends_leaf=ends_leaf)
                return _Going(parts=parts, end=lambda: self._hand_back(operation, own.gradient))
            case KeepCompany(what=what, ends_leaf=ends_leaf):
                parts = stage.company_parts(what, ends_leaf=ends_leaf)
                return _Going(parts=parts, end=lambda: None)
            case _:
                assert_never(operation)

    def _input(self, operation: Forward) -> _Input:
        microbatch, stage = operation.microbatch, operation.stage
        is_last = stage == self._assembly.last_stage
        batch = self._read(microbatch) if stage == 0 or is_last else None
        if batch and stage == 0:
            x = batch.tokens[:, :-1]
        else:
            x = self._borders.take(_activation(stage - 1, microbatch))
        if not (batch and is_last):
            return _Input(x=x)
        return _Input(x=x, targets=batch.tokens[:, 1:], samples=batch.samples)

    def _leave(self, operation: Forward, given: _Input, passage: Passage) -> None:
        self._passages[_key(operation)] = passage
        if passage.losses:
            mesh = self._work.mesh
            samples = given.samples if mesh.ring.rank == 0 else NO_SAMPLES
            self._ballot.count(passage.losses, samples if mesh.tensor.rank == 0 else None)
        else:
            message = _activation(operation.stage, operation.microbatch)
            self._borders.put(message, passage.outputs[-1])

    def _gradient(self, operation: Backward | InputBackward) -> Tensor | None:
        if operation.stage == self._assembly.last_stage:
            return None
        return self._borders.take(_gradient(operation.stage, operation.microbatch))

    def _hand_back(self, operation: Backward | InputBackward, of_input: Tensor | None) -> None:
        if of_input is not None:
            message = _gradient(operation.stage - 1, operation.microbatch)
            self._borders.put(message, of_input)

    def _read(self, microbatch: int) -> _Batch:
        """A rank that holds both ends of the model as two stages reads a microbatch once."""
        if microbatch in self._batches:
            return self._batches.pop(microbatch)
        buffer, device = self._assembly.tokens, self._assembly.workspace.device
        samples = self._work.fill(microbatch * self._assembly.spec.microbatch, buffer)
        tokens = torch.from_numpy(buffer.astype(np.int64)).to(device)
        batch = _Batch(tokens=tokens, samples=samples)
        if len(self._assembly.stages.keys() & {0, self._assembly.last_stage}) > 1:
            self._batches[microbatch] = batch
        return batch


def _key(operation: Forward | Backward | InputBackward | WeightBackward) -> tuple[int, int]:
    return operation.stage, operation.microbatch


def _activation(border: int, microbatch: int) -> BorderMessage:
    return BorderMessage(what="activation", border=border, microbatch=microbatch)


def _gradient(border: int, microbatch: int) -> BorderMessage:
    return BorderMessage(what="gradient", border=border, microbatch=microbatch)
