"""A pickle that would do harm is refused, and nothing of it happens."""

import collections
import os
import pickle
import subprocess
from pathlib import Path

import pytest

from remesh.parallel.files.opcodes import Made, Named, plain_data
from remesh.parallel.plan.errors import CheckpointError

ROOT = Path(__file__).parents[2]


class Harm:
    """Unpickled, it makes the folder."""

    def __init__(self, what, *args):
        self.call = what, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_data_is_what_was_pickled(protocol):
    value = [1, -7, 2**40, 2.5, "text", None, True, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), []]
    assert plain_data(pickle.dumps(value, protocol), ()) == value


def test_dicts_and_calls_are_records_of_what_would_have_been_made():
    found = plain_data(pickle.dumps({"a": 1, ("b", 2): [3]}), ())
    assert (found.what, found.pairs) == ("dict", [("a", 1), (("b", 2), [3])])
    assert found.value("a") == 1
    ordered = plain_data(pickle.dumps(collections.OrderedDict(a=1)), {"collections.OrderedDict"})
    assert ordered == Made("collections.OrderedDict", (), None, [("a", 1)])
    assert plain_data(pickle.dumps(Path), {"pathlib.Path"}) == Named("pathlib.Path")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", [(os.mkdir,), (os.system,), (eval,), (subprocess.check_call,)])
def test_a_pickle_that_would_run_something_is_refused_before_it_does(tmp_path, protocol, call):
    made = tmp_path / "made"
    argument = {
        os.mkdir: str(made),
        os.system: f"mkdir {made}",
        eval: f"__import__('os').mkdir({str(made)!r})",
        subprocess.check_call: ["mkdir", str(made)],
    }[call[0]]
    encoded = pickle.dumps(Harm(*call, argument), protocol)
    with pytest.raises(CheckpointError):
        plain_data(encoded, {"torch.Size", "collections.OrderedDict"})
    assert not made.exists()
    if protocol > 1:
        with pytest.raises(CheckpointError, match=r"nothing of it was run\. Do not load it"):
            plain_data(encoded, ())
    pickle.loads(encoded)
    assert made.exists()  # so that it shows that the pickle is not harmless


def test_a_call_of_an_allowed_name_is_written_down_and_not_made(tmp_path):
    made = tmp_path / "made"
    found = plain_data(pickle.dumps(Harm(os.mkdir, str(made))), {"posix.mkdir"})
    assert found == Made("posix.mkdir", (str(made),))
    assert not made.exists()


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"no pickle",
        b"\x80\x04.",
        b"\x80\x04K\x01",  # has no end
        b"\x80\x04h\x05.",  # a memo that was never put
        b"\x80\x04]t.",  # a tuple without a mark
        b"\x80\x04K\x01K\x02R.",  # calls a number
        b"\x80\x04K\x01K\x02b.",  # gives a state to a number
        b"\x80\x04K\x01(K\x02e.",  # appends to a number
        b"\x80\x04}(K\x02u.",  # a key without a value
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",  # a text of 2**63 bytes
        b"\x80\x04\x82\x01.",  # a name by a number of the copy registry
        pickle.dumps([1, 2, 3])[:-3],
    ],
)
def test_what_is_no_pickle_of_plain_data_is_an_error(encoded):
    with pytest.raises(CheckpointError):
        plain_data(encoded, ())


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (b"\x80\x04)\x8c\x04name\x93.", "names something by what is no text"),
        (b"\x80\x04\x8c\x04name)\x93.", "names something by what is no text"),
        (b"\x80\x04\x8c\x01a\x8c\x01b\x93]R.", "calls something with what is no tuple"),
        (b"\x80\x04]q\0h\0a.", "changes what is in another value already"),
        (b"\x80\x04" + b"]" * 70 + b"a" * 69 + b".", "nested more than 64 deep"),
        (b"\x80\x04)" + b"\x85" * 70 + b".", "nested more than 64 deep"),
        (b"\x80\x04]" + b"q\0h\0h\0\x86" * 12 + b".", "holds more than"),
        (b"\x80\x04F" + b"x" * 10**6 + b"\n.", "could not convert"),
    ],
)
def test_what_could_harm_whoever_looks_at_it_is_an_error_of_one_line(encoded, text):
    """parallel A8, security A3."""
    with pytest.raises(CheckpointError, match=text) as caught:
        plain_data(encoded, {"a.b"})
    assert len(str(caught.value)) < 300


# Between an agent and the processes of its node, over sockets that nobody else can reach; and what
# an agent itself is given by Ray, which pickles all of its words.
AMONG_PROCESSES_OF_OURS = {"link.py", "fork_words.py", "warm_process.py"} | {
    "warm_start.py",
    "owner.py",
    "ray_agents.py",
}


def test_no_file_is_unpickled_anywhere():
    """What loads a pickle is not even named; torch.distributed.checkpoint only ever writes here."""
    folders = [ROOT / name for name in ("api", "orchestrator", "actors", "parallel", "data")]
    words = ("pickle.load", "import pickle\n", "torch.load", "Unpickler(", "checkpoint.load(")
    found = {
        path.name
        for folder in folders
        for path in folder.rglob("*.py")
        for word in words
        if word in path.read_text()
    }
    assert found == AMONG_PROCESSES_OF_OURS
