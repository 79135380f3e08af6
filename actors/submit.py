"""Starting a run: whatever can be refused is refused here, then the controller is started."""

import secrets
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from remesh.actors.connection import connect, disconnect, start_controller
from remesh.actors.local_cluster import LocalCluster
from remesh.actors.orders import RunSpec
from remesh.actors.run_folder import RunFolder
from remesh.actors.run_view import report_of
from remesh.actors.status import ask
from remesh.data.manifest import Manifest
from remesh.data.skips import parse_skips
from remesh.data.stream import Stream
from remesh.orchestrator.control.options import Options
from remesh.orchestrator.control.records import CheckpointState, FreshState
from remesh.orchestrator.errors import UnreachableError, UserError
from remesh.orchestrator.job import Job
from remesh.orchestrator.run import RunOptions, RunStatus

ANSWER_LIMIT_S = 30.0


def start_run(job: Job, options: RunOptions) -> "Run | FinishedRun":
    """Start the job, or take up its run; a run that is finished already is only shown.

    Raises: UserError for what the user can mend, with nothing started; UnreachableError.
    """
    manifest = _check_data(job)
    folder = _free_folder(job, fresh=options.fresh)
    before = folder.fingerprint()
    job = job.continuing(before) if before else job
    fingerprint = job.fingerprint(manifest.digest)
    folder.check(fingerprint)
    checkpoints = folder.checkpoints()
    if checkpoints and checkpoints[0].step >= job.train.steps:
        return FinishedRun(job, folder, checkpoints[0].step)
    spec = RunSpec(
        run=secrets.token_hex(4),
        job=_anchored(job),
        folder=str(folder.path.absolute()),
        data_digest=manifest.digest,
        fingerprint=fingerprint,
        incarnation=0,
        max_members=_max_members(job, options),
        kills=options.kills,
    )
    cluster = connect(job, options)
    try:
        folder.keep(fingerprint)
        spec = replace(spec, incarnation=folder.claim(spec.run))
        controller = start_controller(spec, _control_options(spec, checkpoints, folder))
    except BaseException:
        disconnect(cluster)
        raise
    return Run(spec=spec, controller=controller, cluster=cluster)


class Run:
    """A started run, as its driver holds it."""

    def __init__(self, *, spec: RunSpec, controller: Any, cluster: LocalCluster | None) -> None:
        self._spec = spec
        self._controller = controller
        self._cluster = cluster
        self._seen = 0

    def poll(self) -> RunStatus:
        """Raises: UnreachableError if the controller is gone."""
        status: RunStatus = self._ask("poll", self._seen)
        self._seen += len(status.announcements)
        return status

    def stop(self) -> None:
        self._ask("stop", "stopped by the user")

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = self._ask("report")
        return report

    def close(self) -> None:
        """End the controller, and the cluster where it was started for this run."""
        import ray  # noqa: PLC0415

        try:
            with suppress(UnreachableError):
                self._ask("end")
            ray.kill(self._controller)
        finally:
            disconnect(self._cluster)
            RunFolder(Path(self._spec.folder)).withdraw(self._spec.run)

    def _ask(self, method: str, *args: Any) -> Any:
        import ray  # noqa: PLC0415

        call = getattr(self._controller, method).options(concurrency_group="driver")
        try:
            return ray.get(call.remote(*args), timeout=ANSWER_LIMIT_S)
        except ray.exceptions.RayError as error:
            raise UnreachableError(
                f"the run's controller does not answer ({type(error).__name__}); "
                f"the same command resumes at the last checkpoint"
            ) from None


class FinishedRun:
    """A run whose steps are all done already: nothing is started."""

    def __init__(self, job: Job, folder: RunFolder, step: int) -> None:
        self._job = job
        self._folder = folder
        self._step = step

    def poll(self) -> RunStatus:
        return RunStatus(
            phase="finished",
            step=self._step,
            steps=self._job.train.steps,
            ended=True,
            status="finished",
            reason=f"{self._folder.path} holds all {self._job.train.steps} steps already",
        )

    def stop(self) -> None:
        """There is nothing to stop."""

    def report(self) -> dict[str, Any]:
        return report_of(self._folder.path, self._job, status="finished")

    def close(self) -> None:
        """There is nothing to close."""


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


def _free_folder(job: Job, *, fresh: bool) -> RunFolder:
    """The run's folder, once nobody else trains in it and it takes files."""
    folder = RunFolder(job.run_dir)
    contact = folder.contact()
    if contact and ask(contact, "/status"):
        raise UserError(
            f"{folder.path} is in use by run {contact.run}, which is alive (pid {contact.pid}); "
            f"wait for it or stop it, or use another folder with --set checkpoint.dir=DIR"
        )
    folder.probe()
    if fresh:
        folder.clear()
    return folder


def _anchored(job: Job) -> Job:
    """The job with its data's folder from the root: workers have other working directories."""
    data = job.data.model_copy(update={"dir": str(Path(job.data.dir).absolute())})
    return job.model_copy(update={"data": data})


def _max_members(job: Job, options: RunOptions) -> int:
    if options.address is not None:
        return job.max_dp
    return min(job.max_dp, options.nodes * options.workers_per_node)


def _control_options(
    spec: RunSpec, checkpoints: tuple[CheckpointState, ...], folder: RunFolder
) -> Options:
    elastic = spec.job.elastic
    return Options(
        steps=spec.job.train.steps,
        max_dp=spec.max_members,
        min_workers=min(elastic.min_workers, spec.max_members),
        spares=elastic.spares,
        max_failures=elastic.max_failures,
        healthy_steps=elastic.healthy_steps,
        patience_s=elastic.patience_s,
        wait_limit_s=elastic.wait_limit_s,
        resume=checkpoints[0] if checkpoints else FreshState(),
        fallbacks=checkpoints[1:],
        last_generation=folder.last_generation(),
    )
