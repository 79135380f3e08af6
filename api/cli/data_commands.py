"""`remesh data build`, and the build that a job's first start makes by itself."""

from collections.abc import Callable
from pathlib import Path

from remesh.data.building.documents import READ_PLAINLY, Reading
from remesh.data.manifest import MANIFEST, Manifest
from remesh.orchestrator.job.dataset import check_dataset, unused_ids
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count

TELL_BYTES = 64 << 20


def build_dataset(
    source: str,
    out: Path,
    seq_len: int,
    note: Callable[[str], None],
    reading: Reading = READ_PLAINLY,
) -> Manifest:
    """Builds a dataset, or finds it complete, and says so, with what is not in it."""
    from remesh.data.building.prepare import build  # noqa: PLC0415 - loads pyarrow

    note(f"building {out} from {source}")
    manifest = build(
        source, out, seq_len, reading=reading, on_progress=_now_and_then(note), tell=note
    )
    note(
        f"{out}: {count(manifest.num_rows, 'row')} of {count(manifest.seq_len, 'token')} in "
        f"{count(len(manifest.shards), 'shard')}, digest {manifest.digest[:16]}"
    )
    return manifest


def ensure_dataset(job: Job, note: Callable[[str], None]) -> None:
    """Builds the job's dataset where there is none yet, and tells what of the model it leaves out.

    Raises: UserError if there is none and the job names no source, or if it does not fit the job.
    """
    folder, seq_len = Path(job.data.dir), job.train.seq_len
    if (folder / MANIFEST).exists():
        manifest = Manifest.load(folder)
    elif job.data.source is None:
        raise UserError(
            f"no data in {folder}: there is no {MANIFEST}; set data.source, or build it with: "
            f"remesh data build SOURCE --out {folder} --seq-len {seq_len}"
        )
    else:
        manifest = build_dataset(job.data.source, folder, seq_len, note)
    check_dataset(job, manifest)
    if said := unused_ids(job, manifest):
        note(said)


def _now_and_then(note: Callable[[str], None]) -> Callable[[int, int], None]:
    """Tells how far a build is, after every 64 MiB that it has read."""
    next_bytes = TELL_BYTES

    def progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal next_bytes
        if done_bytes >= next_bytes:
            next_bytes = done_bytes + TELL_BYTES
            note(f"{done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB read")

    return progress
