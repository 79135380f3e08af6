"""Everything a worker needs before its first order, so that joining a mesh takes milliseconds."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from remesh.actors.node.seats import RankSeat
from remesh.actors.node.stamps import Stamps
from remesh.actors.orders import RunSpec
from remesh.actors.run.claims import check_shared
from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.storage.storage_url import open_storage
from remesh.actors.storage.struck_storage import StruckStorage
from remesh.actors.worker.course import Course, engine_spec
from remesh.actors.worker.laying_out import room_for
from remesh.actors.worker.ordered_faults import Faults
from remesh.actors.worker.snapshot_taker import SnapshotTaker
from remesh.actors.worker.tools import TrainerParts
from remesh.actors.worker.trainer import Trainer
from remesh.data.manifest import Manifest
from remesh.data.skips import parse_skips
from remesh.data.stream import Stream
from remesh.orchestrator.control.words.events import Event, SnapshotsPaused
from remesh.orchestrator.job.job import Job
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.warm_up import warm_up

_SHARED_S = 5.0  # for which a shared file system may hide a new file


def build_trainer(
    spec: RunSpec, seat: RankSeat, stamps: Stamps, post: Callable[[Event], None]
) -> Trainer:
    """Raises: DataError, LayoutError, CheckpointError, UserError."""
    torch.set_num_threads(spec.job.train.threads)
    url = spec.job.checkpoint.url
    storage = StruckStorage(open_storage(url or spec.folder))
    check_shared(storage, url or spec.folder, (spec.incarnation, spec.run), _SHARED_S)
    room = room_for(spec.job)
    engine, stream = Engine(engine_spec(spec.job), room=room), _open_stream(spec.job)
    warm_up(engine.spec)
    return Trainer(
        TrainerParts(
            worker=seat.worker,
            node_ip=seat.node_ip,
            start=spec.start,
            job=spec.job,
            engine=engine,
            stream=stream,
            course=Course(spec.job, engine, stream),
            storage=storage,
            stamps=stamps,
            faults=Faults(
                spec=spec,
                worker=seat.worker,
                node=seat.node,
                storage=LocalStorage(Path(spec.folder)),
                disk=storage,
            ),
            snapshots=SnapshotTaker(
                every=spec.job.checkpoint.snapshot_every,
                timers=spec.job.timers,
                paused=lambda generation, why: post(
                    SnapshotsPaused(worker=seat.worker, generation=generation, reason=why)
                ),
            ),
            post=post,
            strict_groups=os.environ.get("REMESH_STRICT_GROUPS") == "1",
            room=room,
        )
    )


def _open_stream(job: Job) -> Stream:
    folder = Path(job.data.dir)
    return Stream(
        folder,
        Manifest.load(folder),
        global_batch=job.train.global_batch,
        seed=job.job.seed,
        skips=parse_skips(job.data.skip),
    )
