"""What a state lies in is not made page by page of 4 KB where it is first filled."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.optimizer import MasterShard, StateMemory
from remesh.parallel.pages.large_pages import untouched

SIZE_BYTES = 2**26
SMALL_PAGES = SIZE_BYTES // 4096
THERE = Path("/sys/kernel/mm/transparent_hugepage/enabled")

with_large_pages = pytest.mark.skipif(
    not THERE.exists() or "[never]" in THERE.read_text(), reason="a kernel without large pages"
)


def faults(function):
    """How many pages had to be made meanwhile."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    function()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_untouched_memory_is_zeros_that_begin_with_a_page():
    memory = untouched(10_000)
    assert bytes(memory) == bytes(10_000)
    assert np.frombuffer(memory, np.uint8).ctypes.data % 4096 == 0


@with_large_pages
def test_a_state_is_filled_in_large_pages_and_not_before():
    shards = []

    def make():
        shards.append(
            MasterShard.zeros(
                SIZE_BYTES // 4,
                num_decayed=0,
                slots=AdamW().slots,
                dtype=torch.float32,
                memory=StateMemory(device=torch.device("cpu")),
            )
        )

    assert faults(make) < SMALL_PAGES / 10
    assert faults(lambda: shards[0].values.fill_(1.0)) < SMALL_PAGES / 4
