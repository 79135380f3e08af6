"""A worker's machine, and hands that carry out its duties at once."""

from control_values import record

from remesh.orchestrator.worker import duties as do
from remesh.orchestrator.worker import heard
from remesh.orchestrator.worker.reports import Reports
from remesh.orchestrator.worker.seat import Seat

LASTING = (do.BuildMesh, do.RestoreState, do.Train, do.CopyPart, do.CloseGroups)


def seat(*, last_step=4, save_every=2, worker="worker-0"):
    reports = Reports(remember_s=40.0)
    return Seat(worker=worker, last_step=last_step, save_every=save_every, reports=reports)


def called(generation=1, *, rank=0, size=2, from_step=0):
    return heard.Called(generation=generation, rank=rank, size=size, from_step=from_step)


def fenced(generation=1, heard_step=0):
    return heard.Fenced(generation=generation, heard_step=heard_step)


def leave(generation=1, *, save=False, heard_step=0):
    return heard.AskedToLeave(generation=generation, save=save, heard_step=heard_step)


def formed(generation=1):
    return heard.MeshFormed(generation=generation, form_s=0.0)


def restored(generation=1, at_step=0):
    return heard.StateRestored(generation=generation, at_step=at_step, restore_s=0.0)


def stepped(step, generation=1, *, now_s=0.0, step_s=0.2, **did):
    done = record(step, step_s=step_s, **did)
    return heard.Stepped(generation=generation, record=done, now_s=now_s)


def copied(generation=1):
    return heard.PartCopied(generation=generation)


def broken(generation=1, error="a peer is gone"):
    return heard.MeshBroken(generation=generation, error=error)


def closed(generation=1, at_step=None):
    return heard.GroupsClosed(generation=generation, at_step=at_step)


def cut_short(generation=1):
    return heard.CutShort(generation=generation)


def hear(machine, *words):
    """What the last of these words leads to."""
    duties = []
    for word in words:
        duties = machine.handle(word)
    return duties


def told(duties):
    return [duty.event for duty in duties if isinstance(duty, do.TellIt)]


def undone(duties):
    """Everything but what is told."""
    return [duty for duty in duties if not isinstance(duty, do.TellIt)]


def training(machine, generation=1, step=1, **place):
    """In a mesh, amid this step."""
    hear(machine, called(generation, from_step=step - 1, **place), formed(generation))
    hear(machine, restored(generation, step - 1))
    return machine
