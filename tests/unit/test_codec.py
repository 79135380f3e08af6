"""The codec: every word comes back exactly, and what is none is refused with its place."""

import json
import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum, StrEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remesh.orchestrator.accounts.snapshot import Snapshot
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.codec import decode, encode, plan_of
from remesh.orchestrator.control.words.codec_plans import CodecError
from remesh.orchestrator.control.words.commands import Command
from remesh.orchestrator.control.words.events import Event
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.plan.ladder import Flight, Ladder
from remesh.orchestrator.plan.rung import Unit
from remesh.orchestrator.plan.staging import Staging
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.step_result import StepResult

COUNTS = st.integers(1, 2**70)
LAYOUTS = st.builds(
    lambda dp, pp, cp, ep, tp: Layout(dp=dp * ep, pp=pp, cp=cp, ep=ep, tp=tp), *[COUNTS] * 5
)
FLIGHTS = st.builds(
    lambda layout, step, more, unit, bit_key: Flight(
        lowest=layout,
        last=layout.dp + step * more,
        step=step,
        unit=unit,
        staging=Staging(
            schedule=bit_key, pipeline=Pipeline(ranks=layout.pp, chunks=2, folded=step > 1)
        ),
        bit_key=bit_key,
    ),
    LAYOUTS,
    COUNTS,
    st.integers(0, 2**40),
    st.builds(Unit, on_one_node=st.booleans()),
    st.text(max_size=3),
)
LADDERS = st.builds(
    lambda flights, num_leaves, reasons: Ladder(
        flights=tuple(flights), num_leaves=num_leaves, reasons=tuple(reasons)
    ),
    st.lists(FLIGHTS, min_size=1, max_size=2),
    COUNTS,
    st.lists(st.text(max_size=3), max_size=2),
)
FITTING = {Layout: LAYOUTS, Flight: FLIGHTS, Ladder: LADDERS}  # their numbers go together


def quietly(max_examples):
    """So many examples, and no error for a machine that is slow to draw them."""
    slow = [HealthCheck.too_slow]
    return settings(max_examples=max_examples, deadline=None, suppress_health_check=slow)


def made(kind, values):
    try:
        return kind(**values)
    except ValueError:  # values that do not go together
        return None


def drawn(hint):  # noqa: PLR0911 - a line for each shape
    """Any value of an annotation, from the annotation alone."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return st.one_of([drawn(one) for one in inner])
    if kind in FITTING:
        return FITTING[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        given = {one.name: drawn(hints[one.name]) for one in fields(kind)}
        return st.fixed_dictionaries(given).map(lambda found: made(kind, found)).filter(bool)
    if kind is tuple and inner[1:] != (...,):
        return st.tuples(*map(drawn, inner))
    if kind in (dict, Mapping):
        return st.dictionaries(drawn(inner[0]), drawn(inner[1]), max_size=2)
    if kind in (tuple, list, set, frozenset, deque):
        lists = st.lists(drawn(inner[0]), max_size=2, unique_by=repr)
        return lists.map(lambda held: deque(held, maxlen=5) if kind is deque else kind(held))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    plain = {int: COUNTS, float: st.floats(), str: st.text(max_size=3), bool: st.booleans()}
    return {**plain, NoneType: st.none(), None: st.none()}[kind]


def through_a_file(hint, value):
    return decode(hint, json.loads(json.dumps(encode(hint, value), allow_nan=False)))


def exactly(value):
    """The same text for the same value: NaN and -0.0 too, and no order of sets."""
    if is_dataclass(value):
        return [type(value).__name__, *(exactly(getattr(value, f.name)) for f in fields(value))]
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, sorted(map(repr, value))]
    if isinstance(value, dict):
        return [(exactly(key), exactly(held)) for key, held in value.items()]
    if isinstance(value, (tuple, list, deque)):
        bound = value.maxlen if isinstance(value, deque) else None
        return [type(value).__name__, bound, *map(exactly, value)]
    return repr(value)


WORDS = [
    *((Event, kind) for kind in get_args(Event)),
    *((Command, kind) for kind in get_args(Command)),
    (Options, Options),
]


@pytest.mark.parametrize(("hint", "kind"), WORDS, ids=lambda word: getattr(word, "__name__", ""))
@quietly(5)
@given(data=st.data())
def test_every_word_comes_back_as_it_was(hint, kind, data):
    value = data.draw(drawn(kind))
    assert exactly(through_a_file(hint, value)) == exactly(value)


@pytest.mark.parametrize("kind", [State, Tally, Snapshot])
@quietly(2)
@given(data=st.data())
def test_what_a_machine_remembers_comes_back_as_it_was(kind, data):
    value = data.draw(drawn(kind))
    assert exactly(through_a_file(kind, value)) == exactly(value)


class Colour(Enum):
    RED = 1
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksSlow:
    """An event as the next ones will be: with a tuple of plain values."""

    generation: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    pair: tuple[str, float]
    either: int | float | str | None
    choice: Layout | RanksSlow | float
    other: RanksSlow | None
    by_name: Mapping[str, float]
    by_pair: dict[tuple[int, int], set[str]]
    colours: frozenset[Colour]
    queue: deque[tuple[int, float]]
    inner: "list[Everything]"
    more: Any = None


ALL = Everything(
    pair=("a", -math.inf),
    either=None,
    choice=RanksSlow(generation=1, ranks=()),
    other=RanksSlow(generation=2, ranks=(7,)),
    by_name={"is": math.nan, "": 5e-324},
    by_pair={(1, 2): {"x", "y"}},
    colours=frozenset(Colour),
    queue=deque([(1, 0.5)], maxlen=2),
    inner=[],
    more={"plain": [1]},
)


def test_a_word_with_a_tuple_of_plain_values_comes_back():
    hint = Event | RanksSlow
    told = RanksSlow(generation=1, ranks=(3, 4))
    assert encode(hint, told) == {"is": "RanksSlow", "generation": 1, "ranks": [3, 4]}
    assert through_a_file(hint, told) == told


@quietly(20)
@given(data=st.data())
def test_a_value_that_may_be_of_several_kinds_comes_back_as_its_own(data):
    changes = {
        name: data.draw(drawn(get_type_hints(Everything)[name]))
        for name in ("pair", "either", "choice", "other", "by_name", "by_pair", "colours", "queue")
    }
    value = replace(ALL, inner=[replace(ALL, **changes)], **changes)
    assert exactly(through_a_file(Everything, value)) == exactly(value)


def test_a_whole_number_may_stand_for_a_float_and_is_one_then():
    assert repr(through_a_file(float, 3)) == "3.0"
    assert repr(decode(float, 3)) == "3.0"
    assert repr(through_a_file(int | float, 3)) == "3"
    assert repr(through_a_file(float | None, 3)) == "3.0"


FLAGS = ("applied", "drain", "save", "snapshot")
DID = {field.name: field.name in FLAGS or 1 for field in fields(StepResult)} | {"digest": "d"}
STEP = {"step": 1, "did": DID, "step_s": 1, "ended_s": 1}
DONE = {"is": "StepsDone", "worker": "w", "generation": 1}


def done(**did):
    return {**DONE, "records": [{**STEP, "did": {**DID, **did}}]}


@pytest.mark.parametrize(
    ("hint", "values", "says"),
    [
        (Event, {**DONE, "records": [STEP, {**STEP, "step": "2"}]},
         "StepsDone.records[1].step: expected int, found '2'"),
        (Event, done(applied=1),
         "StepsDone.records[0].did.applied: expected bool, found 1"),
        (Event, {**DONE, "records": [{**STEP, "step": True}]}, "expected int, found True"),
        (Event, done(loss="nan"), "expected float, found 'nan'"),
        (Event, done(loss=math.nan), "expected float, found nan"),
        (Event, done(loss={"float": "1"}), "expected float"),
        (Event, done(loss=10**400), "expected float, found 1000"),
        (Event, {**DONE, "records": {}}, "StepsDone.records: expected list, found {}"),
        (Event, {**DONE, "records": [], "colour": "red"}, "StepsDone: StepsDone has no 'colour'"),
        (Event, DONE, "StepsDone: 'records' of StepsDone is missing"),
        (Event, {**DONE, "is": "Popen"}, "found 'Popen'"),
        (Event, {**DONE, "is": ["StepsDone"]}, "found ['StepsDone']"),
        (Event, {"worker": "w"}, f"expected one of {len(get_args(Event))}, RunStarted or "),
        (Event, [], "found []"),
        (Options, {}, "Options: 'steps' of Options is missing"),
        (Layout, {"dp": 0, "pp": 1, "cp": 1, "ep": 1, "tp": 1}, "Layout: it is no Layout: "),
        (tuple[int, str], [1], "expected tuple of 2, found [1]"),
        (set[int], [1, 1], "a member twice"),
        (dict[int, str], [[1, "a"], [1, "b"]], "a key twice"),
        (dict[int, str], [[1]], "[0]: expected tuple of 2"),
        (dict[str, int], {"a" * 999: "b"}, "aaa']: expected int, found 'b'"),
        (deque[int], {"maxlen": 1, "items": [1, 2]}, "at most 1, found 2"),
        (deque[int], {"maxlen": True, "items": []}, "expected int, found True"),
        (Colour, "green", "expected Colour, found 'green'"),
        (Colour, True, "expected Colour, found True"),
        (Colour, [], "expected Colour, found []"),
        (int | None, "x" * 10**6, "expected int or None, found 'xxxx"),
    ],
)  # fmt: skip
def test_what_is_none_is_refused_in_one_short_line_with_its_place(hint, values, says):
    with pytest.raises(CodecError) as refused:
        decode(hint, values)
    text = str(refused.value)
    assert says in text
    assert "\n" not in text
    assert len(text) < 300


@quietly(30)
@given(data=st.data())
def test_any_value_in_any_place_is_read_exactly_or_refused(data):
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=3,
    )
    values = encode(Everything, ALL)
    values[data.draw(st.sampled_from(sorted(values.keys() - {"more"})))] = data.draw(anything)
    try:
        found = decode(Everything, values)
    except CodecError:
        return
    assert exactly(decode(Everything, encode(Everything, found))) == exactly(found)


def test_what_could_not_be_read_back_is_not_written():
    for wrong in ("ab", (1, "2"), (True,), 3, None):
        with pytest.raises(CodecError, match=r"^RanksSlow\.ranks"):
            encode(RanksSlow, RanksSlow(generation=1, ranks=wrong))
    with pytest.raises(CodecError, match="found RanksSlow"):
        encode(Event, RanksSlow(generation=1, ranks=()))
    with pytest.raises(CodecError, match="expected RanksSlow, found Slower"):
        encode(list[RanksSlow], [Slower(generation=1, ranks=())])


class Slower(RanksSlow):
    """Another class, which would come back as its parent."""


class Shade(StrEnum):
    DARK = "dark"


def test_among_several_kinds_a_derived_value_is_written_as_its_parent_is():
    assert encode(str | None, Shade.DARK) == "dark"
    assert encode(int | Mapping[str, int] | None, OrderedDict(a=1)) == {"a": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    age: int


def test_two_classes_of_one_name_do_not_hide_each_other():
    other = dataclass(type("Twin", (), {"__annotations__": {"age": str}}))
    with pytest.raises(TypeError, match="no telling which of these it is: Twin, Twin"):
        plan_of(Twin | other)


@pytest.mark.parametrize(
    "hint",
    [
        tuple[int, ...] | list[int],
        str | Colour,
        dict[str, int] | Twin,
        Any | None,
        bytes,
        tuple,
        Mapping[str, bytes],
    ],
)
def test_an_annotation_that_does_not_say_what_is_meant_is_an_error_at_once(hint):
    with pytest.raises(TypeError):
        plan_of(hint)


def test_the_plan_of_a_class_is_made_once():
    encode(Everything, ALL)
    made = plan_of.cache_info().misses
    for _ in range(3):
        through_a_file(Everything, replace(ALL, inner=[ALL] * 9))
    assert plan_of.cache_info().misses == made
