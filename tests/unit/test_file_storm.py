"""A storm on the files of a finished run: a line and a code, or recovery, and nothing made up.

issue 9, "It must show": 20 changes in `make test`, 100 or more in `make soak` (--file-changes).
"""

import json

import pytest
from file_storm import CHANGES, check, check_report, files_of, mutate, mutations
from finished_run import contact_of, finished_run

LIMIT_S = 60


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    run = whole(tmp_path_factory.mktemp("whole"))
    report = run.folder / "report.json"
    assert run.take_up("--report", report).code == 0
    return json.loads(report.read_text())


def whole(folder):
    run = finished_run(folder)
    run.run.publish(contact_of())
    return run


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(metafunc.config.getoption("--file-changes")))


@pytest.mark.timeout(LIMIT_S)
def test_a_changed_file_is_a_line_and_a_code_or_recovery(tmp_path, truth, number):
    run = whole(tmp_path)
    file, kind = mutations(run, number + 1, "storm")[number]
    mutate(run, file, kind, number)
    check(run, truth)


def test_a_report_that_makes_something_up_fails_the_storm(truth):
    check_report(truth, truth)
    for changed in (
        {"steps": 8},
        {"status": "failed"},
        {"losses": [*truth["losses"][:-1], 1.0]},
        {"losses": [*truth["losses"][:-1], None]},
    ):
        with pytest.raises((AssertionError, ValueError)):
            check_report({**truth, **changed}, truth)


def test_every_file_and_every_change_can_be_met(tmp_path):
    run = whole(tmp_path)
    files = files_of(run)
    assert {file.partition("/")[0].partition(".")[0][:5] for file in files} == {
        "bits", "claim", "finge", "journ", "run", "step-",
    }  # fmt: skip
    drawn = mutations(run, 10**6, "storm")
    assert len(set(drawn)) == len(files) * len(CHANGES) >= 100
