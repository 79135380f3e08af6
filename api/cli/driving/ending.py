"""The end of a run as the command tells it: what its files prove, the report, the exit code."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from remesh.cli.driving.drive import Display, DrivenRun, Wish, exit_code
from remesh.cli.screen.said import loss_text
from remesh.data.durable import durable_file
from remesh.orchestrator.job.driver_words import RunStatus
from remesh.orchestrator.user_errors import RemeshError
from remesh.orchestrator.user_text import count

LOST_OR_REPEATED = 5


def told_end(
    run: DrivenRun, last: RunStatus, display: Display, wish: Wish, report: Path | None
) -> int:
    """The exit code of a run that has ended, with all that was said of it and its report written.

    One that says that it is finished has to prove it: by a checkpoint that can be read back, and by
    the account of its samples.
    """
    code = exit_code(last, wish.signal_number)
    if code == 0 and (flaw := run.flaw()) is not None:
        reason = f"{flaw}; the same command goes on from the newest one that can be read"
        last = replace(last, status="failed", reason=reason)
        code = exit_code(last, wish.signal_number)
    account = run.report() if code == 0 or report is not None else {}
    if report is not None:
        write_report(report, {**account, "status": last.status})
        display.note(f"report: {report}")
    for line in doubts(account):
        display.note(line)
    display.note(_last_words(last))
    return LOST_OR_REPEATED if code == 0 and _is_off(account) else code


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """The report as JSON, whole or not at all."""
    try:
        with durable_file(path) as file:
            file.write(json.dumps(report, indent=1).encode() + b"\n")
    except OSError as error:
        raise RemeshError(f"the report {path} could not be written: {error.strerror}") from None


def doubts(account: Mapping[str, Any]) -> Iterator[str]:
    """A line for each thing that a report cannot vouch for."""
    samples = account.get("samples", {})
    if _is_off(account):
        yield (
            f"{count(samples['lost'] or 0, 'sample', 'was', 'were')} lost and "
            f"{samples['repeated'] or 0} trained twice: this is not the curve of an undisturbed "
            f"run; please report it with the journal, and start over with --fresh"
        )
    yield from account.get("damage", ())
    steps = account.get("unproven_steps", ())
    if steps:
        yield (
            f"steps {', '.join(steps)} cannot be proven: no journal tells of them any more; the "
            f"state that they led to is in the checkpoints"
        )


def _is_off(account: Mapping[str, Any]) -> bool:
    samples = account.get("samples", {})
    return bool(samples.get("lost") or samples.get("repeated"))


def _last_words(status: RunStatus) -> str:
    loss = "" if status.loss is None else f", loss {loss_text(status.loss)}"
    return f"{status.status} at step {status.step}{loss}: {status.reason}"
