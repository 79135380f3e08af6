"""Starting a run: whatever can be refused is refused here, then the controller is started."""

import secrets
from contextlib import ExitStack, closing
from pathlib import Path

from remesh.actors.cluster.connection import connect, disconnect
from remesh.actors.controller.starting import find_controller, start_controller
from remesh.actors.jobs.run_handle import FinishedRun, Run
from remesh.actors.jobs.standing import Standing, standing
from remesh.actors.orders import RunSpec
from remesh.actors.run.folder import RunFolder
from remesh.actors.vault.wire import TOKEN_BYTES
from remesh.data.manifest import Manifest
from remesh.data.skips import parse_skips
from remesh.data.stream import Stream
from remesh.orchestrator.control.words.options import MANY_NODES, Options
from remesh.orchestrator.control.words.records import FreshState
from remesh.orchestrator.job.amendments import flat
from remesh.orchestrator.job.curve import bits_change
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.planner import NodeRoom, ladder_of, no_room
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import is_url


def start_run(job: Job, options: RunOptions) -> Run | FinishedRun:
    """Start the job, or take up its run; a run that is finished already is only shown.

    Raises: UserError for what the user can mend, with nothing started; UnreachableError.
    """
    manifest = _check_data(job)
    job = _anchored(job)
    folder = RunFolder(job.run_dir, job.checkpoint.url)
    folder.probe()
    with ExitStack() as held:
        held.enter_context(folder.lock())
        if run := _take_up(job, options, folder, held):
            return run
        ladder = _ladder(job, options)
        folder.check_free(fresh=options.fresh)
        if options.fresh:
            folder.clear()
        stands = standing(job, manifest.digest, folder, options.from_step)
        if stands.step >= job.train.steps:
            return _finished(stands, folder)
        held.callback(disconnect, connect(job, options))
        _keep(folder, stands)
        spec = _spec(stands, options, folder, ladder.highest.workers)
        folder.keep_bits(job.bits)
        held.callback(folder.withdraw, spec.run)
        controller = start_controller(spec, _control_options(spec, ladder, stands, folder))
        return Run(controller, held.pop_all(), outlives=bool(options.submission))


def _take_up(job: Job, options: RunOptions, folder: RunFolder, held: ExitStack) -> Run | None:
    """The run of this submission that outlived its last driver, None if there is none.

    Its controller may be starting again just now: it is asked for by name.
    """
    if not options.submission:
        return None
    contact = folder.contact()
    if contact is None or contact.submission != options.submission:
        return None
    with ExitStack() as connected:
        connected.callback(disconnect, connect(job, options))
        controller = find_controller(contact.run)
        if controller is None:
            return None
        held.push(connected.pop_all())
        held.callback(folder.withdraw, contact.run)
        return Run(controller, held.pop_all(), outlives=True)


def _finished(stands: Standing, folder: RunFolder) -> FinishedRun:
    """Raises: UserError if there is something to change, and no step to train with it."""
    if stands.added:
        one = stands.added[0]
        raise UserError(
            f"all {stands.job.train.steps} steps are trained already, and {one.key} = {one.new} "
            f"would hold from step {one.step} on; raise train.steps too, or go back with "
            f"--from-step"
        )
    return FinishedRun(stands.as_begun, folder, stands.step)


def _keep(folder: RunFolder, stands: Standing) -> None:
    """Make this the run here, as it goes on."""
    folder.keep(stands.first)
    if stands.fingerprint != flat(stands.first, stands.amendments):
        folder.amend(stands.fingerprint)
    if stands.abandoned:
        folder.go_back(stands.step)


def _spec(stands: Standing, options: RunOptions, folder: RunFolder, most: int) -> RunSpec:
    run = secrets.token_hex(4)
    job = stands.job
    change = bits_change(folder.bits(), job.bits)
    return RunSpec(
        run=run,
        job=job,
        folder=str(folder.path.absolute()),
        data_digest=str(stands.first["data.digest"]),
        fingerprint=stands.first,
        changes=stands.added,
        incarnation=folder.claim(run),
        max_members=most,
        kills=options.kills,
        driver_lease_s=driver_lease_s(job, options),
        submission=options.submission,
        vault_token=secrets.token_hex(TOKEN_BYTES // 2),
        notices=(*stands.notices(), *([change] if change else ())),
    )


def driver_lease_s(job: Job, options: RunOptions) -> float:
    """How long the run goes on when its driver is gone."""
    if options.submission:
        return job.elastic.orphan_after_s
    return job.timers.lease_s


def _check_data(job: Job) -> Manifest:
    """Raises: DataError unless the dataset is whole, as far as a quick look can tell."""
    folder = Path(job.data.dir)
    manifest = Manifest.load(folder)
    stream = Stream(
        folder,
        manifest,
        global_batch=job.train.global_batch,
        seed=job.job.seed,
        skips=parse_skips(job.data.skip),
    )
    with closing(stream):
        stream.check()
    return manifest


def _anchored(job: Job) -> Job:
    """The job with its paths from the root: workers have other working directories."""
    data = job.data.model_copy(update={"dir": str(Path(job.data.dir).absolute())})
    url = job.checkpoint.url
    if url is None or is_url(url):
        return job.model_copy(update={"data": data})
    checkpoint = job.checkpoint.model_copy(update={"url": str(Path(url).absolute())})
    return job.model_copy(update={"data": data, "checkpoint": checkpoint})


def _ladder(job: Job, options: RunOptions) -> Ladder:
    """That of the job, as far as nodes that are started for it have room.

    Raises: UserError if they have no room for a mesh.
    """
    ladder = ladder_of(job)
    if options.address is not None:
        return ladder
    room = NodeRoom(nodes=options.nodes, places=options.workers_per_node)
    within = ladder.within(room.units)
    if within is None:
        raise UserError(no_room(ladder, room))
    return within


def _control_options(spec: RunSpec, ladder: Ladder, stands: Standing, folder: RunFolder) -> Options:
    elastic, checkpoints = spec.job.elastic, stands.checkpoints
    return Options(
        steps=spec.job.train.steps,
        ladder=ladder,
        min_workers=min(elastic.min_workers, spec.max_members),
        spares=elastic.spares,
        min_nodes=elastic.min_nodes,
        max_nodes=elastic.max_nodes or MANY_NODES,
        max_failures=elastic.max_failures,
        healthy_steps=elastic.healthy_steps,
        max_skipped_steps=spec.job.train.max_skipped_steps,
        patience_s=elastic.patience_s,
        wait_limit_s=elastic.wait_limit_s,
        resume=checkpoints[0] if checkpoints else FreshState(),
        fallbacks=checkpoints[1:],
        last_generation=folder.last_generation(),
        amendments=stands.kept,
        origin=stands.origin,
    )
