import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remesh.orchestrator.job.job import MAX_FILE_BYTES, Job, load_job, parse_job
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
NAME_RULE = "1 to 64 letters, digits, . _ or -, the first a letter or digit"


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_job(TINY, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("--set: ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.stesp=80", "train.stesp: unknown key; did you mean train.steps?"),
        ("job.steps=80", "job.steps: unknown key; did you mean train.steps?"),
        ("trian.steps=80", "trian: unknown table; did you mean [train]?"),
        ("metrics.colour=1", "metrics.colour: unknown key; [metrics] has port, host, names"),
        ("train.steps=-3", "train.steps = -3: expected at least 1"),
        ("train.steps=0", "train.steps = 0: expected at least 1"),
        ("train.steps=many", 'train.steps = "many": expected an integer'),
        ("train.steps=1.5", "train.steps = 1.5: expected an integer"),
        ("train.steps=true", "train.steps = true: expected an integer"),
        (f"train.steps={10**50}", f"train.steps = {10**50}: expected at most {2**40}"),
        ("train.lr=true", "train.lr = true: expected a number"),
        ("train.lr=0", "train.lr = 0: expected more than 0.0"),
        ("train.lr=nan", "train.lr = NaN: expected a finite number"),
        ("train.beta1=1", "train.beta1 = 1: expected less than 1.0"),
        ("train.lr_curve=linear", 'train.lr_curve = "linear": expected "constant" or "cosine"'),
        ("parallel.dp=four", 'parallel.dp = "four": expected an integer or "auto"'),
        ("parallel.dp=-1", 'parallel.dp = -1: expected at least 1 or "auto"'),
        ("elastic.same_bits=1", "elastic.same_bits = 1: expected true or false"),
        ("parallel.zero=1", "parallel.zero: unknown key; did you mean the table [zero]?"),
        ("zero.stage=4", "zero.stage = 4: expected at most 3"),
        (
            "zero.group=2",
            (
                "zero.group = 2 shares nothing at zero.stage = 0; use one of 1, 2, 3 as "
                "zero.stage, or zero.group = 0"
            ),
        ),
        (
            "zero.keep_gathered=true",
            (
                "zero.keep_gathered = true: zero.stage = 0 gathers no weights; set "
                "zero.keep_gathered = false, or zero.stage = 3"
            ),
        ),
        (
            "checkpoint.snapshot_every=often",
            'checkpoint.snapshot_every = "often": expected an integer or "auto"',
        ),
        (
            "checkpoint.snapshot_every=-1",
            'checkpoint.snapshot_every = -1: expected at least 0 or "auto"',
        ),
        ("checkpoint.vault_bytes=-1", "checkpoint.vault_bytes = -1: expected at least 0"),
        ("train.dtype=fp16", 'train.dtype = "fp16": expected "fp32" or "bf16"'),
        (
            "data.skip=30..35",
            """data.skip = "30..35": expected a list; write it as --set 'data.skip=["30..35"]'""",
        ),
        ("data.skip=[3]", "data.skip = 3: expected a string"),
        (
            'data.skip=["35..30"]',
            'data.skip: "35..30" is empty; did you mean "30..35"?',
        ),
        ("data.dir=", 'data.dir = "": expected a string that is not empty'),
        ("job.name=my run/1", f'job.name = "my run/1": expected {NAME_RULE}'),
        ("train.steps", "--set train.steps: expected TABLE.KEY=VALUE, such as train.steps=100"),
        ("steps=3", "--set steps=3: expected TABLE.KEY=VALUE, such as train.steps=100"),
        (
            "metrics.host=localhost",
            "metrics.host = 'localhost' is no IPv4 address; use 127.0.0.1, or 0.0.0.0",
        ),
    ],
)
def test_a_bad_value_names_the_key_what_was_seen_and_what_was_expected(override, message):
    assert refusal(override) == message


def test_a_mistake_in_the_file_names_the_file_and_one_in_an_override_does_not():
    text = TINY.read_text().replace("steps = 80", "stesp = 80")
    with pytest.raises(UserError) as caught:
        parse_job(text, name="my.toml", overrides=["train.lr=1"])
    assert str(caught.value) == "my.toml: train.stesp: unknown key; did you mean train.steps?"
    with pytest.raises(UserError, match=r"^--set: train\.lr = -1: expected more than 0.0$"):
        load_job(TINY, ["train.lr=-1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps 80", "j: not TOML: "),
        ("a = 1\na = 2", "j: not TOML: "),
        ("a = " + "[" * 5000, "j: not "),
        ("train = 3", "j: the table [job] is missing; it needs name"),
        ('[job]\nname = "a"', "j: the table [model] is missing; it needs num_layers, width, "),
        ("[job]", "j: job.name is missing"),
        ('job = "a"', 'j: job = "a": expected a table, [job]'),
        ("", "j: the table [job] is missing; it needs name"),
        ("x = 1", "j: x: unknown table; the tables are job, model, data, train, parallel, "),
    ],
)
def test_a_text_that_is_no_job_says_what_it_lacks(text, message):
    with pytest.raises(UserError) as caught:
        parse_job(text, name="j")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="no such file; name a job file"):
        load_job(tmp_path / "none.toml")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        load_job(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"a = \xff")
    with pytest.raises(UserError, match="not TOML: not UTF-8 text at byte 4"):
        load_job(binary)
    large = tmp_path / "large.toml"
    large.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(UserError, match="a job file has at most"):
        load_job(large)


KEYS = [
    f"{table}.{key}"
    for table, field in Job.model_fields.items()
    for key in field.annotation.model_fields
]
VALUES = st.one_of(
    st.text(max_size=8),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["[]", "{}", "[[1]]", "{a = 1}", "1979-05-27", "true", '""', "\0", "inf"]),
)


def outcome(override):
    try:
        return load_job(TINY, [override])
    except UserError as error:
        return str(error)


@settings(max_examples=20, database=None)
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_any_override_makes_a_job_or_is_refused(key, value):
    found = outcome(f"{key}={value}")
    assert found.num_leaves >= 1 if isinstance(found, Job) else key.split(".")[0] in found


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        ("job.name=2024", """--set 'job.name="2024"'"""),
        ("data.dir=3", """--set 'data.dir="3"'"""),
        ("job.name=true", """--set 'job.name="true"'"""),
        ("train.lr=.0003", "--set train.lr=0.0003"),
        ("train.lr=3.e-4", "--set train.lr=0.0003"),
        ("train.steps=1e3", "--set train.steps=1000"),
        ("train.steps=1,000", "--set train.steps=1000"),
        ("data.skip=30..35", """--set 'data.skip=["30..35"]'"""),
        ("parallel.layers=4", "--set parallel.layers=[4]"),
        ("elastic.pp=2, 1", "--set elastic.pp=[2,1]"),
        ("elastic.same_bits=False", "--set elastic.same_bits=false"),
    ],
)
def test_an_override_of_the_wrong_kind_says_how_to_write_it(override, cure):
    """inputs C5: and what it says is what works."""
    said = refusal(override)
    assert said.endswith(f"; write it as {cure}")
    (written,) = shlex.split(cure)[1:]
    assert isinstance(load_job(TINY, [written]), Job)


def test_a_byte_order_mark_in_front_of_a_job_is_no_mistake(tmp_path):
    """inputs C3: editors put it there. A mark of UTF-16 is named."""
    marked = tmp_path / "job.toml"
    marked.write_bytes(b"\xef\xbb\xbf" + TINY.read_bytes().replace(b"\n", b"\r\n"))
    assert load_job(marked) == load_job(TINY)
    marked.write_bytes(TINY.read_text().encode("utf-16"))
    with pytest.raises(UserError, match="UTF-16; save it as UTF-8"):
        load_job(marked)
