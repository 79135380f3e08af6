"""docs/: the pages that follow from the code are as the code makes them."""

import importlib.util
import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from remesh.cli.main import main
from remesh.orchestrator.job.job import Job, load_job

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
SPEC = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
SOME_LEAVES = (
    "train.global_batch=60",
    "train.microbatch=1",
    "parallel.tp=2",
    "parallel.pp=2",
    "parallel.cp=2",
    "elastic.max_workers=48",
    "zero.stage=1",
    "model.num_experts=4",
    "model.expert_width=64",
)
OTHER_LEAVES = {
    "train.global_batch": 32,
    "train.microbatch": 4,
    "parallel.dp": 2,
    "parallel.tp": 1,
    "parallel.pp": 1,
    "parallel.cp": 1,
    "parallel.ep": 4,
    "zero.group": 4,
    "elastic.max_workers": 32,
    "elastic.pp": [1],
    "elastic.tp": [1],
    "elastic.cp": [1],
    "elastic.ep": [4],
    "elastic.same_bits": "false",
}
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)


@pytest.mark.parametrize("page", reference.pages())
def test_a_page_is_what_the_code_makes(page):
    assert (DOCS / page).read_text() == reference.pages()[page], "run make docs"


def test_every_key_of_the_job_file_is_described_in_a_sentence():
    tables = {name: field.annotation.model_fields for name, field in Job.model_fields.items()}
    silent = [
        f"{table}.{key}"
        for table, fields in tables.items()
        for key, field in fields.items()
        if not (field.description or "").endswith(".")
    ]
    assert silent == []


def test_each_key_has_one_row_of_five_cells():
    """A line break or a bare bar in a description would tear the table."""
    lines = [line for line in reference.job_file().splitlines() if line.startswith("|")]
    cells = [line.replace(r"\|", "").strip("|").split("|") for line in lines]
    assert {len(row) for row in cells} == {5}
    assert all(line.endswith("|") for line in lines)
    assert [row[0].strip() for row in cells if row[0].startswith(" `")] == [
        f"`{table}.{key}`"
        for table, field in Job.model_fields.items()
        for key in field.annotation.model_fields
    ]


def test_the_keys_that_choose_the_leaves_are_named():
    """elastic.max_workers shapes neither curve nor bits by itself, but other leaves do."""
    tiny = ROOT / "examples" / "tiny.toml"
    leaves = load_job(tiny, SOME_LEAVES).num_leaves
    assert OTHER_LEAVES.keys() == reference.LEAVES
    for key, value in OTHER_LEAVES.items():
        job = load_job(tiny, [*SOME_LEAVES, f"{key}={value}"])
        assert job.num_leaves != leaves, key


@pytest.fixture
def schema(capsys):
    assert main(["schema"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_schema_for_editors_allows_the_examples(schema, example):
    jsonschema.validate(tomllib.loads(example.read_text()), schema)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("train", "stepz", 80),
        ("train", "steps", "80"),
        ("zero", "stage", 4),
        ("job", "name", "a b"),
    ],
)
def test_the_schema_refuses_what_the_job_file_refuses(schema, table, key, value):
    job = tomllib.loads(EXAMPLES[-1].read_text())
    job.setdefault(table, {})[key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, schema)


def test_the_schema_says_of_each_key_what_it_does(schema):
    (table,) = (kind for name, kind in schema["$defs"].items() if name == "TrainTable")
    assert all(kind["description"] for kind in table["properties"].values())
