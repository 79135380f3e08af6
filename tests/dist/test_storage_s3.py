"""Storage on a real S3 server: what it keeps, who creates a path, what a bad line does."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from s3_server import HOST, Line, make_bucket, s3_server
from small_checkpoint import newest_state, save, state, write_and_commit
from waiting import PATIENCE_S

from remesh.actors.storage.patience import Patience
from remesh.actors.storage.storage_url import open_storage
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import committed
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.reading import read, read_fragments
from remesh.parallel.state.root_manifest import CheckpointRef

HASTY = Patience(num_tries=3, try_s=PATIENCE_S, pause_s=0.01)
NEW = CheckpointRef(step=20, generation=1)
FOLDERS = itertools.count()


@pytest.fixture(scope="session")
def server():
    with s3_server() as port:
        make_bucket(port, "bucket")
        yield port


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def line(server):
    with Line(server) as line:
        yield line


@pytest.fixture
def folder():
    return f"run-{next(FOLDERS)}"


def on_s3(port, folder, bucket="bucket", patience=HASTY):
    url = f"s3://{bucket}/{folder}?endpoint_override={HOST}:{port}&scheme=http&region=eu-west-1"
    return open_storage(url, patience)


@pytest.fixture
def storage(server, folder):
    return on_s3(server, folder)


def test_it_keeps_what_checkpoints_ask_of_a_storage(storage, server, folder):
    storage.put("a/b/one", b"0123456789")
    storage.put("a/two", bytearray(b""))
    assert storage.get("a/b/one") == b"0123456789"
    assert storage.get_range("a/b/one", 3, 4) == b"3456"
    assert storage.get_range("a/b/one", 8, 100) == b"89"
    assert storage.get_range("a/b/one", 50, 2) == storage.get_range("a/two", 0, 2) == b""
    room = bytearray(9)
    assert storage.read_into("a/b/one", 2, [memoryview(room)[:3], memoryview(room)[3:]]) == 8
    assert room == b"23456789\0"
    assert storage.list("") == ["a/b/one", "a/two"]
    assert storage.list("a/b") == storage.list("a/b/o") == ["a/b/one"]
    assert storage.list("b") == storage.list("none/x") == []
    storage.put("a/two", memoryview(b"new"))
    assert storage.get("a/two") == b"new"
    for missing in (lambda: storage.get("none"), lambda: storage.get_range("none", 0, 1)):
        with pytest.raises(FileNotFoundError):
            missing()
    storage.delete("none")
    storage.delete("a/two")
    assert on_s3(server, folder).list("") == ["a/b/one"]


def test_one_of_many_callers_creates_a_path(storage, server, folder):
    storages = [storage, *(on_s3(server, folder) for _ in range(3))]

    def claims(caller):
        return [
            storages[caller].put_if_absent(f"claims/{n}", str(caller).encode()) for n in range(5)
        ]

    with ThreadPoolExecutor(4) as callers:
        won = list(callers.map(claims, range(4)))
    for n, answers in enumerate(zip(*won, strict=True)):
        assert sum(answers) == 1
        assert storage.get(f"claims/{n}") == str(answers.index(True)).encode()


def test_a_checkpoint_is_saved_committed_pruned_and_read_there(storage):
    save(storage, 10)
    assert newest_state(storage) == 10
    save(storage, 20)
    assert [ref.step for ref in committed(storage)] == [20]
    assert newest_state(storage) == 20
    w1 = whole("w1", (8, 2), "float32")
    rows = w1.part((2, 0), (3, 2))
    assert read_fragments(storage, NEW, [rows])[rows].eq(20).all()
    with pytest.raises(FileExistsError, match="is another file"):
        write_and_commit(storage, NEW, tensors={"w0": state(1)["w0"]})


def test_a_flipped_bit_or_a_missing_file_is_an_error_that_names_it(storage):
    write_and_commit(storage, NEW, num_writers=1)
    for path in storage.list(""):
        good = storage.get(path)
        for position in (0, len(good) // 2, len(good) - 1):
            torn = bytearray(good)
            torn[position] ^= 4
            storage.put(path, torn)
            with pytest.raises(CheckpointError, match=rf"{path.rpartition('/')[2]}: "):
                read(storage, NEW)
        storage.delete(path)
        with pytest.raises(CheckpointError, match=rf"{path.rpartition('/')[2]}: it is missing"):
            read(storage, NEW)
        storage.put(path, good[:-3])
        with pytest.raises(CheckpointError, match=rf"{path.rpartition('/')[2]}: "):
            read(storage, NEW)
        storage.put(path, good)
    assert newest_state(storage) == 20


def test_what_the_line_loses_is_asked_for_again(line, folder):
    line.faults += ["cut", "mute"]
    storage = on_s3(line.own_port, folder)
    storage.put("one", b"1")
    assert line.num_connections >= 3
    assert storage.get("one") == b"1"


def test_who_created_a_path_knows_it_though_the_answer_was_lost(line, server, folder):
    line.faults += ["mute"] * 2
    assert on_s3(line.own_port, folder).put_if_absent("claim", b"mine")
    line.faults += ["mute"] * 2
    assert not on_s3(line.own_port, folder).put_if_absent("claim", b"another's")
    assert on_s3(server, folder).get("claim") == b"mine"


@pytest.mark.parametrize("fault", ["cut", "hang"])
def test_a_server_that_never_answers_is_an_error_with_the_cure(line, folder, fault):
    line.faults += [fault] * 100
    storage = on_s3(line.own_port, folder, patience=Patience(num_tries=2, try_s=0.2, pause_s=0.01))
    for call in (
        lambda: storage.get("x"),
        lambda: storage.put("x", b"1"),
        lambda: storage.put_if_absent("x", b"1"),
        lambda: storage.list("x/y"),
        lambda: storage.delete("x"),
    ):
        with pytest.raises(OSError, match=r"s3://bucket/run-\d+: \w+ x failed 2 times, .*check"):
            call()
    assert line.num_connections > 5


@pytest.mark.parametrize("fault", ["cut", "mute"])
def test_a_line_lost_at_any_request_of_a_save_leaves_the_old_state_or_the_new_one(
    line, storage, folder, fault
):
    """Each request has a connection of its own; from one on, none is answered any more."""
    write_and_commit(storage, CheckpointRef(step=10, generation=1), num_writers=1)
    once = on_s3(line.own_port, folder, patience=Patience(num_tries=1, try_s=PATIENCE_S))
    found = []
    while True:
        line.faults[:] = [None] * len(found) + [fault] * 100
        if not error_of_a_save(once):
            break
        found.append(newest_state(storage))
    assert found == {"cut": [10] * 6, "mute": [10] * 5 + [20] * 2}[fault]
    assert newest_state(storage) == 20


def error_of_a_save(storage):
    try:
        write_and_commit(storage, NEW, num_writers=1)
    except OSError as error:
        return error
    return None


def test_a_bucket_that_is_not_there_is_an_error_with_the_cure(server):
    with pytest.raises(OSError, match="s3://none/run is not there; create it first"):
        on_s3(server, "run", bucket="none").put("x", b"1")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/x?endpoint=1", "endpoint is no option of s3; use endpoint_override, region"),
        ("s3://me:secret@bucket/x", "holds a credential .*; give it by the environment"),
        ("s3:///x", "names no bucket; write s3://BUCKET/FOLDER"),
        ("nonsense://x", "nonsense://x: cannot be opened: Protocol not known"),
        ("gs://bucket/x", "pip install gcsfs"),
    ],
)
def test_a_url_that_cannot_serve_is_refused_with_the_cure(url, message):
    with pytest.raises(UserError, match=message):
        open_storage(url)
