"""Whether a dataset is the one that a job can train on."""

from remesh.data.manifest import Manifest
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UserError


def check_dataset(job: Job, manifest: Manifest) -> None:
    """Raises: UserError if the length of the rows or the vocabulary does not fit the job."""
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
