"""Whether a dataset is the one that a job can train on."""

from remesh.data.manifest import Manifest
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count


def check_dataset(job: Job, manifest: Manifest) -> None:
    """Raises: UserError if the rows or the vocabulary do not fit the job."""
    where = f"the data in {job.data.dir}"
    if manifest.seq_len != job.train.seq_len:
        raise UserError(
            f"{where} has rows for train.seq_len = {manifest.seq_len} and the job says "
            f"{job.train.seq_len}; change it, or build the data into another data.dir"
        )
    if manifest.vocab_size > job.model.vocab_size:
        raise UserError(
            f"{where} has a vocabulary of {manifest.vocab_size} and model.vocab_size = "
            f"{job.model.vocab_size}; set it to at least {manifest.vocab_size}"
        )
    rows, batch = manifest.num_rows, job.train.global_batch
    if rows < batch:
        raise UserError(
            f"{where} has {count(rows, 'row')} and train.global_batch = {batch}; a step "
            f"would train some of them twice: use a smaller batch, or more text"
        )


def unused_ids(job: Job, manifest: Manifest) -> str | None:
    """What to tell of a vocabulary that is wider than the dataset's; None where it is not."""
    if manifest.vocab_size == job.model.vocab_size:
        return None
    return (
        f"the data in {job.data.dir} has a vocabulary of {manifest.vocab_size} "
        f"({manifest.tokenizer}) and model.vocab_size = {job.model.vocab_size}; the model learns "
        f"nothing of the other {job.model.vocab_size - manifest.vocab_size} ids"
    )


def check_tokenizer(job: Job, manifest: Manifest, *, chosen: bool) -> None:
    """Whether weights from elsewhere know the dataset's tokens by the same ids.

    `chosen` says that the user knows they do not. Raises: UserError.
    """
    if manifest.vocab_size != job.model.vocab_size and not chosen:
        raise UserError(
            f"the model has a vocabulary of {job.model.vocab_size} and the data in {job.data.dir} "
            f"one of {manifest.vocab_size} ({manifest.tokenizer}): its ids would mean other words "
            f"to these weights; to teach them the new ones anyway, add --new-tokenizer"
        )
