"""docs/: the pages that follow from the code are as the code makes them."""

import importlib.util
from pathlib import Path

import pytest

from remesh.orchestrator.job.job import Job

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
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
