"""What a job asks for that is hardly meant is said before it starts, or refused where it cannot be.

The rows are those of user 1.1.
"""

import json
from pathlib import Path

import pytest

from remesh.cli.main import main

TINY = str(Path(__file__).parents[2] / "examples" / "tiny.toml")
COSINE = "train.lr_curve=cosine"

WARNED = [
    (["train.lr=1e30"], "train.lr = 1e+30: "),
    (["train.clip=1e-30"], "train.clip = 1e-30: "),
    (["train.weight_decay=1e9"], "train.weight_decay = 1000000000.0: "),
    (["train.eps=1e300"], "train.eps = 1e+300: "),
    (["train.z_loss=1e9"], "train.z_loss = 1000000000.0: "),
    (["train.warmup_steps=100000"], "train.warmup_steps = 100000: "),
    (["checkpoint.every=1000000"], "checkpoint.every = 1000000: "),
    ([f"checkpoint.keep={2**40}"], f"checkpoint.keep = {2**40}: "),
    (["zero.bucket_bytes=1"], "zero.bucket_bytes = 1: "),
    (["checkpoint.vault_bytes=1", "zero.stage=1"], "checkpoint.vault_bytes = 1: "),
    (["elastic.wait_limit_s=1e-9"], "elastic.wait_limit_s = 1e-09: "),
    (["elastic.max_failures=0"], "elastic.max_failures = 0: "),
    (["metrics.port=9750", "metrics.host=8.8.8.8"], "metrics.host = 8.8.8.8: "),
    (["metrics.port=22"], "metrics.port = 22: "),
    # The same kinds at other keys.
    (["model.top_k=4"], "model.top_k = 4: it is for models with experts"),
    (["train.auxiliary_loss=0.01"], "train.auxiliary_loss = 0.01: it is for models with experts"),
    (["train.balance_rate=0.01"], "train.balance_rate = 0.01: there is no bias"),
    (["model.num_experts=4", "model.balanced=true"], "model.balanced = true: nothing moves"),
    (["model.num_experts=4", "train.auxiliary_loss=9"], "train.auxiliary_loss = 9.0: it outweighs"),
    (["model.num_experts=4", "train.router_z_loss=9"], "train.router_z_loss = 9.0: it outweighs"),
    (["train.beta1=0.99999"], "train.beta1 = 0.99999: "),
    (["train.beta2=0.9999999"], "train.beta2 = 0.9999999: "),
    ([COSINE, "train.lr_steps=100000"], "train.lr_steps = 100000: "),
    (["train.max_skipped_steps=1000"], "train.max_skipped_steps = 1000: "),
    (["train.recompute=full", "train.recompute_every=9"], "train.recompute_every = 9: "),
    (["model.rope_theta=1e-30"], "model.rope_theta = 1e-30: "),
    (["model.norm_eps=10"], "model.norm_eps = 10.0: "),
    (["checkpoint.keep_every=1000"], "checkpoint.keep_every = 1000: "),
    (["checkpoint.keep_best=100000"], "checkpoint.keep_best = 100000: "),
    (["checkpoint.snapshot_every=1000"], "checkpoint.snapshot_every = 1000: "),
    (["elastic.healthy_steps=100000"], "elastic.healthy_steps = 100000: "),
    (["elastic.wait_limit_s=1e300"], "elastic.wait_limit_s = 1e+300: "),
    (["elastic.orphan_after_s=1e-9"], "elastic.orphan_after_s = 1e-09: "),
    (["elastic.orphan_after_s=1e300"], "elastic.orphan_after_s = 1e+300: "),
    (["elastic.spares=9"], "elastic.spares = 9: "),
]
REFUSED = [
    (["checkpoint.dir=/"], "checkpoint.dir = "),
    (["checkpoint.dir=//"], "checkpoint.dir = "),
    (["checkpoint.dir=/tmp/.."], "checkpoint.dir = "),
    (["data.dir=/"], "data.dir = "),
    (["checkpoint.url=http://x/y"], "checkpoint.url = "),
    (["checkpoint.url=HTTPS://x/y"], "checkpoint.url = "),
    ([f"elastic.spares={2**40}"], "elastic.spares = "),
]


def plan(capsys, overrides):
    """Exit code, and all that was printed."""
    code = main(["plan", TINY, *(word for one in overrides for word in ("--set", one))])
    out, error = capsys.readouterr()
    return code, out + error


@pytest.mark.parametrize(("overrides", "start"), WARNED)
def test_a_value_that_is_hardly_meant_is_a_warning(overrides, start, capsys):
    code, text = plan(capsys, overrides)
    assert code == 0
    warnings = [line for line in text.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: {start}")


@pytest.mark.parametrize(("overrides", "start"), REFUSED)
def test_a_value_that_cannot_be_is_refused(overrides, start, capsys):
    code, text = plan(capsys, overrides)
    assert code == 2
    assert text.startswith(f"remesh: --set: {start}")
    assert text.count("\n") == 1


def test_warnings_are_there_for_a_program_too(capsys):
    assert main(["plan", TINY, "--set", "train.lr=1e30", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["warnings"]
    assert line.startswith("train.lr = 1e+30: ")
