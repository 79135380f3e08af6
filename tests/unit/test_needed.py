import needed
import pytest


@pytest.mark.parametrize(
    ("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_what_a_machine_lacks_fails_in_ci_and_is_skipped_elsewhere(monkeypatch, ci, outcome):
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no-such-program is not installed"):
        needed.program("no-such-program")
    with pytest.raises(outcome, match=r"no-such-file is missing"):
        needed.shared("no-such-file")
