"""Starting a run: whatever can be refused is refused here, then the controller is started."""

import secrets
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from remesh.actors.cluster.connection import connect, disconnect, node_memory, nodes
from remesh.actors.controller.starting import find_controller, start_controller
from remesh.actors.history.brought_back import journal_brought_back
from remesh.actors.jobs.continuing import Continuation, check_nothing_changes, continuation_of
from remesh.actors.jobs.earlier_wish import WithWish, taken_up
from remesh.actors.jobs.finishing import Outcome, lost_words
from remesh.actors.jobs.run_handle import FinishedRun, Run
from remesh.actors.node.offers import check_device
from remesh.actors.orders import RunSpec
from remesh.actors.run import old_runs
from remesh.actors.run.account_tail import AccountTail
from remesh.actors.run.folder import RunFolder
from remesh.actors.vault.wire import TOKEN_BYTES
from remesh.data.manifest import Manifest
from remesh.data.skips import parse_skips
from remesh.data.stream import Stream
from remesh.orchestrator.control.words.options import MANY_NODES, Options
from remesh.orchestrator.control.words.records import FreshState
from remesh.orchestrator.job.amendments import flat
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.fitting import check_nodes
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.planner import NodeRoom, ladder_of, no_room
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import is_url


def start_run(
    job: Job, options: RunOptions, say: Callable[[str], None] = lambda _: None
) -> Run | FinishedRun:
    """Start the job, or take up its run; a run that is finished already is only shown.

    `say` hears what is waited for. Raises: UserError for what the user can mend, with nothing
    started and nothing moved; UnreachableError.
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
        folder.check_free(fresh=options.fresh, say=say)
        old_runs.heal(folder.places)
        brought = None if options.fresh else _brought_back(folder)
        goes_on = continuation_of(job, manifest.digest, folder, options)
        outcome = _outcome(folder, goes_on.as_begun)
        if goes_on.step >= job.train.steps:
            check_nothing_changes(goes_on)
            old_runs.discard(folder.places)
            return FinishedRun(outcome, goes_on.step)
        held.callback(disconnect, connect(job, options, _load))
        check_device(job.train.device, nodes())
        if options.address is not None:
            check_nodes(job, ladder, node_memory())
        notices = _made_ready(folder, goes_on, fresh=options.fresh)
        taken = taken_up(job, folder, ladder, partial(_within, options=options))
        spec = _spec(goes_on, options, folder, taken)
        brought_words = (brought,) if brought else ()
        spec = replace(spec, notices=(*notices, *brought_words, *spec.notices))
        folder.keep_bits(job.bits)
        held.callback(folder.withdraw, spec.run)
        control = _control_options(spec, taken, goes_on, folder)
        generation = control.last_generation + 1
        folder.stand_on(goes_on.step, generation=generation, start=spec.start)
        controller = start_controller(spec, control)
        from remesh.actors.jobs.early_agents import begin_agents  # noqa: PLC0415 - loads ray

        begin_agents(spec, control, nodes())
        return Run(controller, held.pop_all(), outcome, outlives=bool(options.submission))


def _load() -> None:
    """Imports what a start needs that loads ray."""
    import remesh.actors.jobs.early_agents  # noqa: F401, PLC0415


def _brought_back(folder: RunFolder) -> str | None:
    """What there is to say of a journal that is elsewhere than the folder. Raises: UserError."""
    if folder.guarded is folder.storage:
        return None
    try:
        return journal_brought_back(folder.guarded, folder.path)
    except OSError as error:
        raise UserError(f"the run's journal cannot be read where it is kept: {error}") from None


def _made_ready(folder: RunFolder, goes_on: Continuation, *, fresh: bool) -> tuple[str, ...]:
    """Makes the folder this run's, when nothing can refuse it any more; what is to be said."""
    old_runs.keep(folder.places)
    number = old_runs.set_aside(folder.places) if fresh else None
    _keep(folder, goes_on)
    checkpoint = goes_on.job.checkpoint
    return (old_runs.told(number, goes_on.job.run_dir, checkpoint.url),) if number else ()


def _keep(folder: RunFolder, goes_on: Continuation) -> None:
    """Make this the run here, as it goes on."""
    folder.keep(goes_on.first)
    if goes_on.fingerprint != flat(goes_on.first, goes_on.amendments):
        folder.amend(goes_on.fingerprint)


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
        return Run(controller, held.pop_all(), _outcome(folder, job), outlives=True)


def _outcome(folder: RunFolder, job: Job) -> Outcome:
    return Outcome(folder=folder, job=job, tail=AccountTail(folder, job))


def _spec(
    goes_on: Continuation, options: RunOptions, folder: RunFolder, taken: WithWish
) -> RunSpec:
    run = secrets.token_hex(4)
    job = goes_on.job
    start = folder.claim(run)
    return RunSpec(
        run=run,
        job=job,
        folder=str(folder.path.absolute()),
        data_digest=str(goes_on.first["data.digest"]),
        fingerprint=goes_on.first,
        changes=goes_on.added,
        start=start,
        incarnation=start,
        max_members=taken.ladder.highest.workers,
        faults=options.faults,
        driver_lease_s=driver_lease_s(job, options),
        submission=options.submission,
        vault_token=secrets.token_hex(TOKEN_BYTES // 2),
        notices=(*goes_on.notices(), *lost_words(folder), *taken.notices),
        own_cluster=options.address is None,
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
    return _within(ladder_of(job), options)


def _within(ladder: Ladder, options: RunOptions) -> Ladder:
    if options.address is not None:
        return ladder
    room = NodeRoom(nodes=options.nodes, places=options.workers_per_node)
    within = ladder.within(room.units)
    if within is None:
        raise UserError(no_room(ladder, room))
    return within


def _control_options(
    spec: RunSpec, taken: WithWish, goes_on: Continuation, folder: RunFolder
) -> Options:
    elastic, checkpoints = spec.job.elastic, goes_on.checkpoints
    return Options(
        steps=spec.job.train.steps,
        ladder=taken.ladder,
        min_workers=min(elastic.min_workers, spec.max_members),
        spares=elastic.spares,
        min_nodes=elastic.min_nodes,
        max_nodes=elastic.max_nodes or MANY_NODES,
        max_failures=elastic.max_failures,
        healthy_steps=elastic.healthy_steps,
        max_skipped_steps=spec.job.train.max_skipped_steps,
        patience_s=elastic.patience_s,
        wait_limit_s=elastic.wait_limit_s,
        save_every=spec.job.checkpoint.every,
        resume=checkpoints[0] if checkpoints else FreshState(),
        fallbacks=checkpoints[1:],
        last_generation=folder.last_generation(),
        amendments=goes_on.kept,
        origin=goes_on.origin,
        carried=taken.carried,
    )
