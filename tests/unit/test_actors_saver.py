import errno
import threading

import pytest
import torch
from counted import c_calls, calls_made
from safetensors.torch import load
from waiting import PATIENCE_S, soon
from whole_shards import decode_shard

from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.worker.saver import Saver
from remesh.data.durable import Disk
from remesh.orchestrator.worker.heard import FileLost, FileWritten
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.plan.errors import Cancelled
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.headers import shard_digest, shard_key
from remesh.parallel.state.root_manifest import CheckpointRef, ShardFile
from remesh.parallel.state.shard_buffer import ShardBuffer
from remesh.parallel.threads import heard_thread

REF = CheckpointRef(step=20, generation=3, start=2)
NO_FENCE = GenerationFence()
FOLDER = "step-00000020.gen-3.start-2"


class Memory:
    """A storage of one process; `full` is a disk without room, `gate` one that takes its time."""

    def __init__(self, *, full=False):
        self.files = {}
        self.full = full
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0

    def put(self, path, data):
        self.begun += 1
        self.gate.wait(PATIENCE_S)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.files[path] = bytes(data)

    def put_if_absent(self, path, data, head=None):
        if head:
            head.fill()
        if path in self.files:
            return False
        self.put(path, data)
        return True

    def get_range(self, path, offset, length):
        return self.files[path][offset : offset + length]


class Posted(list):
    def post(self, event):
        self.append(event)

    def wait(self, count):
        soon(lambda: len(self) >= count)
        return list(self)


@pytest.fixture
def posted():
    return Posted()


def parts(**tensors):
    return [(whole(name, tuple(t.shape), "float32"), t) for name, t in tensors.items()]


def saver(storage, posted, part, rank=0, num_writers=1):
    prepared = Saver(start=2, storage=storage, tell=posted.post)
    prepared.prepare(lambda: part, rank=rank, num_writers=num_writers)
    return prepared


def test_each_rank_leaves_a_file_of_its_part(posted):
    storage = Memory()
    state = {"a": torch.arange(5.0), "b": torch.full((2, 2), 2.0), "c": torch.zeros(3)}
    for rank, names in enumerate(("ac", "b", "")):
        part = parts(**{name: state[name] for name in names})
        saver(storage, posted, part, rank, 3).save(NO_FENCE, step=20, generation=3)
    events = posted.wait(3)
    assert sorted(storage.files) == [f"{FOLDER}/rank-{rank}-of-3.safetensors" for rank in range(3)]
    read = [decode_shard(encoded)[1] for encoded in storage.files.values()]
    assert sorted(name for tensors in read for name in tensors) == ["a", "b", "c"]
    assert all(torch.equal(state[name], t[name]) for t in read for name in t)
    assert {event.files[0].name for event in events} == {
        path.partition("/")[2] for path in storage.files
    }


def test_the_report_is_of_the_file_as_it_was_written(posted):
    storage = Memory()
    saver(storage, posted, parts(a=torch.ones(4))).save(NO_FENCE, step=20, generation=3)
    (encoded,) = storage.files.values() if posted.wait(1) else ()
    file = ShardFile(
        name="rank-0-of-1.safetensors", size_bytes=len(encoded), digest=shard_digest(encoded)
    )
    assert posted == [FileWritten(generation=3, step=20, files=(file,))]


def test_training_on_does_not_change_what_is_saved(posted):
    storage = Memory()
    storage.gate.clear()
    state = {"a": torch.zeros(1000)}
    saver(storage, posted, parts(**state)).save(NO_FENCE, step=20, generation=3)
    state["a"] += 1
    assert posted == []
    storage.gate.set()
    assert [event.step for event in posted.wait(1)] == [20]
    (encoded,) = storage.files.values()
    assert decode_shard(encoded)[1]["a"].sum() == 0


def test_a_save_waits_for_the_one_before_so_that_slow_storage_fills_no_memory(posted):
    storage = Memory()
    storage.gate.clear()
    slow = saver(storage, posted, parts(a=torch.zeros(4)))
    slow.save(NO_FENCE, step=20, generation=3)
    threading.Timer(0.1, storage.gate.set).start()
    slow.save(NO_FENCE, step=21, generation=3)
    assert storage.gate.is_set()
    assert [event.step for event in posted.wait(2)] == [20, 21]


def test_a_full_disk_is_told_and_ends_nothing(posted):
    storage = Memory(full=True)
    same = saver(storage, posted, parts(a=torch.ones(4)))
    same.save(NO_FENCE, step=20, generation=3)
    assert posted.wait(1) == [
        FileLost(
            generation=3,
            step=20,
            error=f"{FOLDER} cannot be written: No space left on device",
        )
    ]
    storage.full = False
    same.save(NO_FENCE, step=20, generation=3)
    assert isinstance(posted.wait(2)[1], FileWritten)


def test_a_rank_without_a_tensor_leaves_a_file_too(posted):
    storage = Memory()
    saver(storage, posted, [], 1, 2).save(NO_FENCE, step=20, generation=3)
    posted.wait(1)
    (encoded,) = storage.files.values()
    assert decode_shard(encoded)[1] == {}


def test_each_save_has_the_values_and_the_name_of_its_step(posted):
    storage = Memory()
    state = {"a": torch.zeros(1000), "b": torch.zeros(3, dtype=torch.float32)}
    same = saver(storage, posted, parts(**state))
    refs = [CheckpointRef(step=step, generation=3, start=2) for step in (8, 9, 10, 11, 100)]
    for count, ref in enumerate(refs, start=1):
        state["a"].fill_(ref.step)
        same.save(NO_FENCE, step=ref.step, generation=ref.generation)
        posted.wait(count)
    for ref, encoded in zip(refs, storage.files.values(), strict=True):
        header, tensors = decode_shard(encoded)
        assert header.ref == ref
        assert tensors["a"].eq(ref.step).all()
    assert [event.files[0].digest for event in posted] == [
        shard_digest(encoded) for encoded in storage.files.values()
    ]


def test_what_is_released_is_written_all_the_same_and_its_memory_serves_the_next_mesh(posted):
    storage = Memory()
    storage.gate.clear()
    same = saver(storage, posted, parts(a=torch.ones(4)))
    same.save(NO_FENCE, step=20, generation=3)
    same.release()
    assert not same.is_prepared
    threading.Timer(0.1, storage.gate.set).start()
    same.prepare(lambda: parts(a=torch.zeros(4)), rank=0, num_writers=1)
    same.save(NO_FENCE, step=21, generation=4)
    posted.wait(2)
    values = [decode_shard(encoded)[1]["a"].tolist() for encoded in storage.files.values()]
    assert values == [[1.0] * 4, [0.0] * 4]


def test_a_bug_while_writing_is_told_and_not_silent(posted):
    """User 12: nobody reads what a background thread raises, so it is an event."""
    storage = Memory()
    storage.files = None
    one = saver(storage, posted, parts(w=torch.ones(3)))
    one.save(NO_FENCE, step=20, generation=3)
    [event] = posted.wait(1)
    assert isinstance(event, FileLost)
    assert "TypeError: argument of type 'NoneType'" in event.error


def test_a_fence_frees_who_waits_for_the_write_before_and_that_goes_on(posted):
    """A11: with storage that stands still."""
    storage = Memory()
    storage.gate.clear()
    state = {"a": torch.ones(4)}
    slow, fence = saver(storage, posted, parts(**state)), GenerationFence()
    slow.save(fence, step=20, generation=3)
    heard_thread(lambda: fence.up(3), name="fence").start()
    with pytest.raises(Cancelled):
        slow.save(fence, step=21, generation=3)
    assert posted == []
    slow.release()
    storage.gate.set()
    assert [word.step for word in posted.wait(1)] == [20]


def test_a_parked_worker_writes_all_that_it_holds_under_its_place(posted):
    storage, state = Memory(), {"a": torch.arange(5.0)}
    one = Saver(start=2, storage=storage, tell=posted.post)
    one.save_held(parts(**state), (1, 4), step=20, generation=3)
    [word] = posted.wait(1)
    assert word.all_held
    assert list(storage.files) == [f"{FOLDER}/rank-1-of-4.safetensors"]
    [encoded] = storage.files.values()
    assert decode_shard(encoded)[1]["a"].tolist() == state["a"].tolist()


def test_what_is_held_may_change_once_it_is_settled_whether_it_was_copied_or_not(posted):
    storage, state = Memory(), {"a": torch.zeros(4)}
    storage.gate.clear()
    one = saver(storage, posted, parts(**state))
    one.save_held(parts(**state), (0, 1), step=20, generation=3)
    soon(lambda: storage.begun)
    one.settle()
    state["a"] += 1
    one.save_held(parts(**state), (0, 1), step=21, generation=3)  # behind the one that is written
    one.settle()
    [lost] = posted.wait(1)
    assert isinstance(lost, FileLost)
    assert lost.all_held
    assert "the run goes on before it was copied" in lost.error
    storage.gate.set()
    assert [word.step for word in posted.wait(2)] == [21, 20]
    [encoded] = storage.files.values()
    assert decode_shard(encoded)[1]["a"].sum() == 0


def test_a_save_finds_all_laid_out_and_all_memory_there(posted):
    """speed 6: the first one laid out and touched all of it where training waits."""
    same = saver(Memory(), posted, parts(a=torch.ones(100_000)))
    assert soon(lambda: same.is_ready)
    memory = same._buffer.result().memory
    for count, step in enumerate((9, 10, 2**40), start=1):
        made = calls_made(lambda step=step: same.save(NO_FENCE, step=step, generation=3))
        assert made["lay_out"] == 0
        assert same._buffer.result().memory is memory
        posted.wait(count)


def test_what_is_to_be_saved_is_found_beside_training_and_a_fence_frees_who_waits_for_it(posted):
    found = threading.Event()

    def part():
        assert found.wait(PATIENCE_S)
        return parts(a=torch.ones(4))

    same = Saver(start=2, storage=Memory(), tell=posted.post)
    same.prepare(part, rank=0, num_writers=1)
    fence = GenerationFence()
    threading.Timer(0.05, fence.up, args=(3,)).start()
    with pytest.raises(Cancelled):
        same.save(fence, step=20, generation=3)
    same.release()
    found.set()
    assert posted == []


def test_what_is_saved_lies_as_the_blocks_of_a_disk_do_so_that_it_goes_there_straight(tmp_path):
    class Noting(Disk):
        def pass_by_cache(self, file, *, passing):
            asked.append(passing)
            super().pass_by_cache(file, passing=passing)

    asked, posted = [], Posted()
    storage = LocalStorage(tmp_path, Noting())
    saver(storage, posted, parts(a=torch.ones(100_000))).save(NO_FENCE, step=20, generation=3)
    assert isinstance(posted.wait(1)[0], FileWritten)
    assert asked == [True, False]


def test_bits_of_every_width_are_copied_as_they_are_also_where_some_are_skipped():
    """By memcpy of runs: torch's own copy of a panel takes a third longer."""
    random = torch.Generator().manual_seed(1)
    bits = torch.randint(0, 256, (16, 64), dtype=torch.uint8, generator=random)
    names = ("float32", "bfloat16", "float16", "int64", "uint8", "float8_e4m3fn")
    part = []
    for name in names:
        tensor = bits.view(getattr(torch, name))
        full = whole(name, tuple(tensor.shape), name)
        half = tensor.shape[1] // 2
        part += [
            (full.part((0, start), (16, half)), tensor[:, start : start + half])
            for start in (0, half)
        ]
    buffer = ShardBuffer(part)
    buffer.prepare()
    assert c_calls("copy_", lambda: buffer.copy(REF)) == 0
    storage = Memory()
    buffer.write(storage, "one")
    tensors = load(storage.files["one"])
    for fragment, tensor in part:
        assert torch.equal(tensors[shard_key(fragment)].view(torch.uint8), tensor.view(torch.uint8))
