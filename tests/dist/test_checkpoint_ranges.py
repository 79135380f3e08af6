"""Reading boxes by byte ranges: only what a rank wants, and nothing that was not verified."""

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from by_ranges import ByRanges
from counted import calls_made
from recorded_disk import HastyDisk
from small_checkpoint import manifest_of

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import commit
from remesh.parallel.state.fragments import flat_boxes, whole
from remesh.parallel.state.headers import header_of, sealed
from remesh.parallel.state.landing import RUN_BYTES, verify
from remesh.parallel.state.panels import panels
from remesh.parallel.state.reading import read, read_boxes, read_fragments, read_into
from remesh.parallel.state.reshard import Move
from remesh.parallel.state.root_manifest import CheckpointRef, shard_file_name
from remesh.parallel.state.shards import encode_fragments, write_shard

REF = CheckpointRef(step=20, generation=1)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@dataclass
class Counted(ByRanges):
    """A storage that counts what is read of it."""

    storage: LocalStorage
    read_bytes: int = 0
    paths: list = field(default_factory=list)

    def get_range(self, path, offset, length):
        data = self.storage.get_range(path, offset, length)
        self.read_bytes += len(data)
        self.paths.append(path)
        return data


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path, HastyDisk())


def full(tensors):
    return {name: whole(name, tuple(t.shape), str(t.dtype)[6:]) for name, t in tensors.items()}


def cut(tensor, fragment):
    return tensor[full({fragment.name: tensor})[fragment.name].slices(fragment)]


def save(storage, tensors, boxes_of_ranks):
    """Each rank's boxes as its shard."""
    files = []
    for rank, boxes in enumerate(boxes_of_ranks):
        encoded = encode_fragments([(box, cut(tensors[box.name], box)) for box in boxes], REF)
        path = f"{REF.name}/{shard_file_name(rank, len(boxes_of_ranks))}"
        files.append(write_shard(storage, path, encoded))
    return commit(storage, manifest_of(REF, files))


def flat_shards(fragments, num_ranks):
    """What ZeRO gives each rank: equal ranges of all tensors laid end to end, as boxes."""
    total = sum(fragment.num_elements for fragment in fragments)
    share = -(-total // num_ranks)
    for rank in range(num_ranks):
        boxes, at = [], 0
        for fragment in fragments:
            start, stop = (min(max(at, n) - at, fragment.num_elements) for n in
                           (rank * share, (rank + 1) * share))  # fmt: skip
            boxes += [
                fragment.part(box.offsets, box.sizes)
                for box in flat_boxes(
                    fragment.global_shape, fragment.offsets, fragment.sizes, start, stop
                )
            ]
            at += fragment.num_elements
        yield boxes


def rows(fragment, num_ranks):
    """Equal numbers of rows; the last rank has fewer, or none."""
    share = -(-fragment.sizes[0] // num_ranks)
    for rank in range(num_ranks):
        start, stop = (min(n * share, fragment.sizes[0]) for n in (rank, rank + 1))
        yield fragment.part((start, *fragment.offsets[1:]), (stop - start, *fragment.sizes[1:]))


def columns(fragment, num_ranks):
    share = fragment.sizes[1] // num_ranks
    for rank in range(num_ranks):
        yield fragment.part((0, rank * share), (fragment.sizes[0], share))


def check(tensors, found):
    for box, tensor in found.items():
        expected = cut(tensors[box.name], box)
        assert tensor.dtype == expected.dtype
        assert tensor.shape == box.sizes
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize("seed", range(12))
def test_random_boxes_come_back_from_random_cuts(storage, seed):
    draw = random.Random(seed)
    tensors, boxes = {}, [[] for _ in range(draw.randint(1, 4))]
    for index, dtype in enumerate(DTYPES):
        shape = [draw.randint(1, 40) for _ in range(draw.randint(0, 3))]
        tensors[f"t{index}"] = torch.randint(0, 2, shape).to(dtype)
    for fragment in full(tensors).values():
        for box in flat_pieces(draw, fragment):
            draw.choice(boxes).append(box)
    ref = save(storage, tensors, boxes)
    want = [random_box(draw, fragment) for fragment in full(tensors).values() for _ in range(3)]
    check(tensors, read_fragments(storage, ref, want))
    wholes = read(storage, ref)
    assert wholes.keys() == tensors.keys()
    check(tensors, {full(tensors)[name]: tensor for name, tensor in wholes.items()})


def flat_pieces(draw, fragment):
    cuts = sorted(draw.randint(0, fragment.num_elements) for _ in range(draw.randint(0, 3)))
    for start, stop in itertools.pairwise((0, *cuts, fragment.num_elements)):
        for box in flat_boxes(fragment.global_shape, fragment.offsets, fragment.sizes, start, stop):
            yield fragment.part(box.offsets, box.sizes)


def random_box(draw, fragment):
    offsets = [draw.randint(0, size - 1) for size in fragment.sizes]
    sizes = [draw.randint(1, n - at) for n, at in zip(fragment.sizes, offsets, strict=True)]
    return fragment.part(tuple(offsets), tuple(sizes))


@pytest.mark.parametrize("num_readers", [1, 2, 3, 5, 7, 8])
def test_ten_elements_of_four_ranks_come_back_on_any_number(storage, num_readers):
    """A parameter and its moments, whose shares are not equal; a rank may have nothing."""
    tensors = {name: torch.randn(10) for name in ("w", "w.exp_avg", "w.exp_avg_sq")}
    shares = {f: list(rows(f, 4)) for f in full(tensors).values()}
    ref = save(storage, tensors, list(zip(*shares.values(), strict=True)))
    for fragment in full(tensors).values():
        want = list(rows(fragment, num_readers))
        found = read_fragments(storage, ref, want)
        assert torch.equal(torch.cat([found[box] for box in want]), tensors[fragment.name])


def test_a_rank_without_an_element_keeps_an_empty_tensor(storage):
    tensors = {"w": torch.arange(6)}
    shares = list(rows(full(tensors)["w"], 4))
    assert [share.num_elements for share in shares] == [2, 2, 2, 0]
    ref = save(storage, tensors, [[share] for share in shares])
    for num_readers in (1, 3, 4, 5):
        want = list(rows(full(tensors)["w"], num_readers))
        found = read_fragments(storage, ref, want)
        assert torch.equal(torch.cat([found[box] for box in want]), tensors["w"])
        assert all(found[box].shape == box.sizes for box in want)


@pytest.fixture(scope="module")
def model():
    """22 MB, like two layers of a small model with one optimizer state."""
    shapes = {"embedding": (2048, 512), "norm": (512,)}
    for layer in range(2):
        shapes |= {f"{layer}.query": (512, 512), f"{layer}.output": (512, 512)}
        shapes |= {f"{layer}.up": (1536, 512), f"{layer}.down": (512, 1536)}
    generator = torch.Generator().manual_seed(1)
    return {
        f"{kind}{name}": torch.randn(shape, generator=generator)
        for kind in ("", "exp_avg.")
        for name, shape in shapes.items()
    }


def tensor_parallel(tensors, size):
    """What each rank holds: output and down by columns, the others by rows."""
    for rank in range(size):
        yield [
            list((columns if name.endswith(("output", "down")) else rows)(fragment, size))[rank]
            for name, fragment in full(tensors).items()
        ]


def layouts(tensors):
    whole_ones = list(full(tensors).values())
    return {
        "flat-1": [whole_ones],
        "flat-3": list(flat_shards(whole_ones, 3)),
        "flat-8": list(flat_shards(whole_ones, 8)),
        "tp-2": list(tensor_parallel(tensors, 2)),
        "tp-8": list(tensor_parallel(tensors, 8)),
        "tp-2-flat-4": [
            boxes for held in tensor_parallel(tensors, 2) for boxes in flat_shards(held, 4)
        ],
    }


def panelled(boxes):
    """The writer's part: what tensor parallelism may cut by columns lies in columns."""
    return [
        panel
        for box in boxes
        for panel in (panels(box) if box.name.endswith(("output", "down")) else [box])
    ]


NAMES = ("flat-1", "flat-3", "flat-8", "tp-2", "tp-8", "tp-2-flat-4")


@pytest.mark.parametrize("saved", NAMES)
def test_a_rank_reads_at_most_a_tenth_more_than_its_own_share(storage, model, saved):
    ref = save(storage, model, [panelled(boxes) for boxes in layouts(model)[saved]])
    for wanted in NAMES:
        for boxes in layouts(model)[wanted][1::5]:
            counted = Counted(storage)
            found = read_fragments(counted, ref, boxes)
            own = sum(box.num_bytes for box in boxes)
            assert counted.read_bytes <= 1.1 * own, (wanted, counted.read_bytes / own)
            check(model, {box: found[box] for box in boxes[::5]})


def test_files_that_hold_nothing_wanted_are_read_no_further_than_their_headers(storage, model):
    ref = save(storage, model, list(flat_shards(list(full(model).values()), 8)))
    counted = Counted(storage)
    read_fragments(counted, ref, [full(model)["norm"]])
    assert counted.read_bytes < 100_000


def test_every_flipped_bit_is_an_error_in_the_range_that_is_wanted_and_only_there(storage):
    tensors = {"w": torch.arange(4096.0).view(64, 64)}
    ref = save(storage, tensors, [[full(tensors)["w"]]])
    (path,) = [p for p in storage.list("") if p.endswith("safetensors")]
    good = storage.get(path)
    upper, lower = rows(full(tensors)["w"], 2)
    for position in range(0, len(good), 61):
        torn = bytearray(good)
        torn[position] ^= 1 << position % 8
        storage.put(path, torn)
        in_lower = position >= len(good) - lower.num_bytes
        in_header = position < len(good) - tensors["w"].nbytes
        for box, hit in ((upper, in_header or not in_lower), (lower, in_header or in_lower)):
            assert is_refused(storage, ref, box) == hit
    storage.put(path, good)
    check(tensors, read_fragments(storage, ref, [upper, lower]))


def is_refused(storage, ref, box):
    try:
        read_fragments(storage, ref, [box])
    except CheckpointError as error:
        assert "rank-0-of-1.safetensors: " in str(error)  # noqa: PT017
        return True
    return False


def test_memory_of_an_earlier_shard_is_used_again(storage):
    parts = [(whole("w", (100,), "float32"), torch.zeros(100))]
    room = encode_fragments(parts, REF)
    later = CheckpointRef(step=21, generation=1)
    again = encode_fragments([(parts[0][0], torch.ones(100))], later, room)
    assert again is room
    file = write_shard(storage, f"{later.name}/rank-0-of-1.safetensors", again)
    assert read(storage, commit(storage, manifest_of(later, [file])))["w"].eq(1).all()
    assert encode_fragments(parts, REF, bytearray(5)) is not room


class Placed(LocalStorage):
    """A storage that knows into which memory tensors were read, as (address, bytes)."""

    def __init__(self, root):
        super().__init__(root)
        self.places = []

    def read_into(self, path, offset, into):
        self.places += [
            (np.frombuffer(view, np.uint8).ctypes.data, len(view)) for view in into if len(view)
        ]
        return super().read_into(path, offset, into)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_what_is_wanted_as_it_lies_is_read_into_the_memory_that_it_is_wanted_in(
    storage, model, num_ranks
):
    """speed 6: it was read into fresh memory, copied into more of it, and into the state."""
    ref = save(storage, model, [list(full(model).values())])
    placed = Placed(storage.root)
    for boxes in flat_shards(list(full(model).values()), num_ranks):
        flat = torch.empty(sum(box.num_bytes for box in boxes) // 4)
        targets, at = {}, 0
        for box in boxes:
            targets[box] = flat[at : at + box.num_elements].view(box.sizes)
            at += box.num_elements
        read_into(placed, ref, targets)
        check(model, targets)
        first, size = flat.data_ptr(), flat.nbytes
        inside = [n for place, n in placed.places if first <= place < first + size]
        assert sum(inside) == size
        beside = sum(n for _, n in placed.places) - size
        assert beside <= 0.1 * size  # the rest of the first and of the last chunk of a box
        placed.places.clear()


def test_a_large_tensor_comes_in_pieces_that_several_threads_read(storage):
    tensors = {"w": torch.arange(10_000_000).view(2000, 5000).float()}
    ref = save(storage, tensors, [[full(tensors)["w"]]])
    placed, target = Placed(storage.root), torch.empty(2000, 5000)
    read_into(placed, ref, {full(tensors)["w"]: target})
    assert torch.equal(target, tensors["w"])
    sizes = [size for _, size in placed.places]
    assert len(sizes) == 2
    assert max(sizes) <= RUN_BYTES
    assert verify(storage, ref) > target.nbytes


class Short(LocalStorage):
    """A storage whose files have lost their ends since their headers were read."""

    def read_into(self, path, offset, into):
        *whole_ones, last = (view for view in into if len(view))
        return super().read_into(path, offset, [*whole_ones, last[:-1]])


def test_bytes_that_did_not_come_are_not_proven_by_those_that_were_there(storage):
    tensors = {"w": torch.arange(4096.0)}
    ref = save(storage, tensors, [[full(tensors)["w"]]])
    there = {full(tensors)["w"]: tensors["w"].clone()}
    with pytest.raises(CheckpointError, match=r"rank-0-of-1.safetensors: it has not \d+ bytes"):
        read_into(Short(storage.root), ref, there)


@dataclass
class Snapshot:
    """A shard in memory, as a vault hands it out."""

    encoded: bytearray
    num_readers: int
    run_bytes: int
    sizes: list = field(default_factory=list)

    def read_into(self, start, into):
        self.sizes.append(sum(map(len, into)))
        for view in into:
            view[:] = self.encoded[start : start + len(view)]
            start += len(view)
        return self.sizes[-1]


@pytest.mark.parametrize("num_readers", [1, 3])
def test_what_lies_in_memory_comes_in_short_runs_with_one_task_a_reader(num_readers):
    tensor = torch.arange(300_000.0)
    fragment = full({"w": tensor})["w"]
    encoded = encode_fragments([(fragment, tensor)], REF)
    header = header_of(encoded, size_bytes=len(encoded))
    start = sealed(header, memoryview(encoded))
    encoded[: len(start)] = start
    header = header_of(encoded, size_bytes=len(encoded))
    target = torch.empty_like(tensor)
    move = Move(source="slot", destination=0, box=fragment, held=fragment, want=fragment)
    source = Snapshot(encoded, num_readers, run_bytes=2**14)
    made = calls_made(read_boxes, header, [move], source, {fragment: target})
    assert torch.equal(target, tensor)
    assert max(source.sizes) <= 2**14
    assert len(source.sizes) >= target.nbytes / 2**14
    assert made["ThreadPoolExecutor.submit"] == num_readers
    encoded[-5] ^= 1
    with pytest.raises(CheckpointError, match="hash of w"):
        read_boxes(header, [move], source, {fragment: target})
