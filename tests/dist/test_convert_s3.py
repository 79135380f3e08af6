"""Models and runs on a real S3 server on loopback: read by ranges, exported, looked at."""

import json

import pytest
import torch
from s3_server import HOST, make_bucket, s3_server
from small_checkpoint import write_and_commit
from small_engine import MODEL, spec

from remesh.actors.checkpoints.looking import find
from remesh.actors.storage.storage_url import open_storage
from remesh.cli.main import main
from remesh.parallel.files.convert import open_weights, read_model, write_model
from remesh.parallel.files.convert_config import config_of
from remesh.parallel.model.initial import initial_value
from remesh.parallel.plan.model_config import parameter_shapes
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.root_manifest import CheckpointRef

SHAPES = parameter_shapes(MODEL)


def drawn(want):
    return {box: initial_value(MODEL, spec().seed, box.name, SHAPES[box.name]) for box in want}


@pytest.fixture(scope="module")
def url():
    with s3_server() as port:
        make_bucket(port, "models")
        yield f"s3://models/{{}}?endpoint_override={HOST}:{port}&scheme=http&region=us-east-1"


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def test_a_model_in_a_bucket_is_written_and_read_by_ranges(url):
    storage = open_storage(url.format("tiny"))
    names = write_model(storage, MODEL, drawn, config_of(MODEL, "float32"), 40_000)
    assert storage.list("") == sorted(names)
    weights = open_weights(storage, read_model(storage, MODEL.seq_len))
    name = "layers.0.ffn.down.weight"
    box = whole(name, SHAPES[name], "float32").part((3, 10), (40, 50))
    (full,) = drawn([whole(name, SHAPES[name], "float32")]).values()
    assert torch.equal(weights.read([box])[box], full[3:43, 10:60])


def test_a_run_in_a_bucket_is_listed_shown_and_verified(url, capsys):
    write_and_commit(open_storage(url.format("run")), CheckpointRef(step=7, generation=2))
    assert find(url.format("run/7")).named == CheckpointRef(step=7, generation=2)
    assert main(["checkpoint", "ls", url.format("run")]) == 0
    assert main(["checkpoint", "verify", url.format("run/step-00000007.gen-2.start-0")]) == 0
    assert "step-00000007.gen-2.start-0 is whole" in capsys.readouterr().out
    assert main(["checkpoint", "show", url.format("run/7"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 3
    assert main(["checkpoint", "show", url.format("run/8")]) == 2
    assert "has no checkpoint 8" in capsys.readouterr().err
