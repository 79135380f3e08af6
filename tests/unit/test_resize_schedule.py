"""A run that grows in the middle: the same steps, each sample once, the learning rate by step."""

from remesh.data.cursor import batch_positions
from remesh.data.order import rows_of
from remesh.data.skips import parse_skips
from remesh.orchestrator.job.job import parse_job
from remesh.parallel.plan.leaves import leaves_each

SAMPLES, GLOBAL_BATCH, GROWS_AFTER, STEPS = 240, 24, 5, 10
JOB = """
[job]
name = "epoch"
[model]
num_layers = 1
width = 32
num_heads = 2
ffn_width = 32
[data]
dir = "rows"
[train]
steps = 10
global_batch = 24
microbatch = 2
seq_len = 8
[elastic]
max_workers = 12
"""


def shares(job, dp):
    """How many samples of each step every replica gets."""
    leaf = GLOBAL_BATCH // job.num_leaves
    return [count * leaf for count in leaves_each(job.num_leaves, dp)]


def test_three_times_the_workers_share_the_same_batch_and_the_epoch_keeps_its_steps():
    job = parse_job(JOB, name="job")
    assert shares(job, 4) == [6] * 4
    assert shares(job, 12) == [2] * 12
    rows = []
    for step in range(1, STEPS + 1):
        positions = batch_positions(step, global_batch=GLOBAL_BATCH, skips=parse_skips(()))
        first = positions.start
        for share in shares(job, 4 if step <= GROWS_AFTER else 12):
            rows.extend(rows_of(first, first + share, num_rows=SAMPLES, seed=7))
            first += share
        assert first == positions.stop
    assert sorted(rows) == list(range(SAMPLES))


def test_neither_the_batch_nor_the_learning_rate_knows_of_the_number_of_workers():
    few, many = (
        parse_job(JOB, name="job", overrides=[f"elastic.min_workers={n}"]) for n in (4, 12)
    )
    assert few.fingerprint("digest") == many.fingerprint("digest")
    assert (few.train.steps, few.train.lr_steps) == (STEPS, STEPS)
