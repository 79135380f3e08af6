"""A run as the command that drives it holds it.

Ray is imported late: it reads its token from the environment, which a local cluster sets first.
"""

from contextlib import ExitStack, suppress
from typing import Any

from remesh.actors.jobs.finishing import Outcome
from remesh.actors.jobs.out_of_reach import HeadWatch, WordsOfLife
from remesh.orchestrator.job.driver_words import RunStatus
from remesh.orchestrator.user_errors import UnreachableError
from remesh.orchestrator.user_text import count

ANSWER_LIMIT_S = 30.0
END_LIMIT_S = 120.0  # its metrics may outlast the run
LOOK_S = 1.0


class Run:
    """A started run, as its driver holds it."""

    def __init__(
        self, controller: Any, held: ExitStack, outcome: Outcome, *, outlives: bool = False
    ) -> None:
        """`held` is what the run needs for as long as it is driven, a cluster of its own too.

        A run that `outlives` its driver is left alone when its controller does not answer.
        """
        self._head = HeadWatch.of_this_cluster()
        self._controller = controller
        self._held = held
        self._outcome = outcome
        self._status = ""
        self._outlives = outlives
        self._lost = False
        self._seen = 0

    def poll(self) -> RunStatus:
        """Raises: UnreachableError if the controller is gone."""
        self._outcome.read_on()
        status: RunStatus = self._ask("poll", self._seen)
        self._seen += len(status.announcements)
        self._status = status.status or status.phase.lower()
        return status

    def stop(self) -> None:
        self._ask("stop", "stopped by the user")

    def report(self) -> dict[str, Any]:
        return self._outcome.report(self._status)

    def flaw(self) -> str | None:
        return self._outcome.flaw()

    def close(self) -> None:
        """End the controller and all that it started, and let go of the rest.

        Ctrl-C ends the wait for Prometheus, which may be yet to read how the run has ended.
        """
        import ray  # noqa: PLC0415

        if self._outlives and self._lost:
            self._held.pop_all()  # the next driver finds the run as it is
            return
        with self._held:
            if self._head.is_gone:
                return  # whatever Ray is asked now waits for a minute, and then ends the process
            with suppress(UnreachableError, KeyboardInterrupt):
                self._ask("end", limit_s=END_LIMIT_S)
            ray.kill(self._controller)

    def _ask(self, method: str, *args: Any, limit_s: float = ANSWER_LIMIT_S) -> Any:
        import ray  # noqa: PLC0415

        call = getattr(self._controller, method).options(concurrency_group="driver")
        try:
            return self._answer(call.remote(*args), limit_s)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            self._lost = True
            raise UnreachableError(
                f"the run's controller does not answer ({type(error).__name__}); "
                f"the same command resumes at the last checkpoint"
            ) from None

    def _answer(self, asked: Any, limit_s: float) -> Any:
        """Waited for as long as the controller gives signs of life, which it does as it reads its
        journal too, and the head of its cluster is there.
        """
        import ray  # noqa: PLC0415

        signs = WordsOfLife(self._outcome.folder.path, limit_s)
        while not ray.wait([asked], timeout=LOOK_S)[0]:
            if self._head.look(answered=False):
                self._lost = True
                raise UnreachableError(
                    "the head of the Ray cluster is gone, and the run's controller with it; "
                    "the same command resumes at the last checkpoint"
                )
            if signs.have_ceased():
                raise ray.exceptions.GetTimeoutError
        answer = ray.get(asked)
        if self._head.look(answered=True):
            self._lost = True
            raise UnreachableError(
                "the head of the Ray cluster is gone; the same command resumes at the last "
                "checkpoint"
            )
        return answer


class FinishedRun:
    """A run whose steps are all done already, as its last checkpoint has proven: nothing is
    started.
    """

    def __init__(self, outcome: Outcome, step: int) -> None:
        self._outcome = outcome
        self._step = step

    def poll(self) -> RunStatus:
        steps = self._outcome.job.train.steps
        return RunStatus(
            phase="finished",
            step=self._step,
            steps=steps,
            ended=True,
            status="finished",
            reason=f"{self._outcome.folder.path} holds all {count(steps, 'step')} already",
        )

    def stop(self) -> None:
        """There is nothing to stop."""

    def report(self) -> dict[str, Any]:
        return self._outcome.report("finished")

    def flaw(self) -> str | None:
        """It was looked for before."""
        return None

    def close(self) -> None:
        """There is nothing to close."""
