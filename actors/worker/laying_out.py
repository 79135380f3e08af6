"""Memory for a rank's part of the state, laid out while its worker waits to be called.

It is as much as a rank of the job's largest mesh holds, which its peers most likely do, and only
where as much again stays free: that is looked at again as pages are made, since several workers of
a machine do so at a time, and each has seen what all of them want. Whoever trains comes first.
"""

import os
import threading

from remesh.actors.cluster.this_machine import free_memory
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.fitting import memory_of
from remesh.orchestrator.plan.planner import ladder_of
from remesh.parallel.pages.state_room import StateRoom

_LAST = 19  # how nice: whatever else wants a processor has it


def room_for(job: Job) -> StateRoom | None:
    """Room for what a rank of its largest mesh holds, of which nothing is laid out yet.

    None where the machine has not the memory to spare, or does not say.
    """
    size_bytes = likely_bytes(job)
    return StateRoom(size_bytes) if has_room(size_bytes, size_bytes) else None


def has_room(left_bytes: int, size_bytes: int) -> bool:
    """Whether the machine can give what is left of so much, and keep as much as the whole."""
    free_bytes = free_memory()
    return free_bytes is not None and left_bytes + size_bytes <= free_bytes


def likely_bytes(job: Job) -> int:
    """Of the state in a rank: weights and what the optimizer remembers."""
    memory = memory_of(job, ladder_of(job).highest)
    return memory.parameters + memory.moments


def lay_out(room: StateRoom) -> None:
    """On a thread of its own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LAST)
    room.lay_out(has_room)
