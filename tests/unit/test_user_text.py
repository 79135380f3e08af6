"""A user's text names a path or a URL, never the one for the other, and tells no secret."""

from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from remesh.actors.run.folder import RunFolder
from remesh.actors.run.old_runs import set_aside
from remesh.actors.storage.patience import Patience
from remesh.actors.storage.storage_url import open_storage
from remesh.cli.main import main
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.job.submission import Submission
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
URLS = ("s3://bucket/data", "s3:/bucket/data", "HTTPS://host/x", "file:///x/y")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "c.jsonl").write_text('{"text": "to be or not to be, that is the question"}\n' * 9)


def error_of(capsys, *arguments):
    code = main(arguments)
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("key", ["data.dir", "data.source", "checkpoint.dir"])
def test_a_url_is_no_folder_of_a_job(url, key):
    """inputs A5."""
    with pytest.raises(UserError, match=f"{key} = .*{url}.*a URL.*checkpoint.url"):
        load_job(TINY, [f"{key}={url}"])


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_no_path_of_a_command(url, capsys, tmp_path):
    """inputs A5: --out, SOURCE, --report, JOB, a run, what is imported."""
    before = sorted(tmp_path.iterdir())
    for arguments in (
        ["data", "build", "c.jsonl", "--out", url, "--seq-len", "8"],
        ["data", "build", url, "--out", "o", "--seq-len", "8"],
        ["run", str(TINY), "--report", url],
        ["run", url],
        ["submit", url, "--address", "x:1"],
        ["status", url],
        ["events", url],
        ["scale", url, "--nodes", "1"],
    ):
        error = error_of(capsys, *arguments)
        assert f"{url} is a URL" in error
        assert "path" in error
    assert sorted(tmp_path.iterdir()) == before


def test_a_url_with_one_slash_is_no_place_either():
    """inputs A5: what pathlib makes of a URL."""
    for text in ("s3:/b/x", "file:/x"):
        with pytest.raises(UserError, match=f"{text}.* has one slash; write {text[:-3]}"):
            open_storage(text)
        with pytest.raises(UserError, match=f"checkpoint.url = .*{text}.*one slash"):
            load_job(TINY, [f"checkpoint.url={text}"])


def test_other_colons_are_no_urls():
    for name in ("C:runs", "a:b", "./s3:/x", "1:/x", "runs/a://b"):
        assert load_job(TINY, [f"checkpoint.dir={name}"]).run_dir == Path(name)


def test_a_tilde_is_the_home_folder(tmp_path):
    """user 19: in the job file and on the command line."""
    home = tmp_path / "home"
    job = load_job(TINY, ["checkpoint.dir=~/runs/x", "data.dir=~/d", "data.source=~", "job.seed=1"])
    assert (job.run_dir, job.data.dir, job.data.source) == (home / "runs/x", f"{home}/d", str(home))
    assert load_job(TINY, ["checkpoint.url=~/c"]).checkpoint.url == f"{home}/c"
    assert load_job(TINY, ["checkpoint.dir=a~b/~"]).run_dir == Path("a~b/~")
    home.mkdir()
    (home / "c.jsonl").write_bytes((tmp_path / "c.jsonl").read_bytes())
    assert main(["data", "build", "~/c.jsonl", "--out", "~/out", "--seq-len", "8"]) == 0
    assert (home / "out" / "manifest.json").exists()
    assert not (tmp_path / "~").exists()
    with pytest.raises(UserError, match=r"~nobody-of-this-name/x.* no home"):
        load_job(TINY, ["checkpoint.dir=~nobody-of-this-name/x"])


def test_a_submission_means_the_home_of_who_submits(monkeypatch):
    """user 19: the job is read again where it runs, by another user perhaps."""
    text = TINY.read_text().replace("every = 20", 'every = 20\ndir = "~/runs/x"')
    submission = Submission(
        id="a", text=text, source="j", folder="/w", home="/home/me", overrides=("data.dir=~/d",)
    )
    monkeypatch.setenv("HOME", "/root")
    job = submission.job()
    assert (str(job.run_dir), job.data.dir) == ("/home/me/runs/x", "/home/me/d")


def test_a_run_that_is_not_found_is_named_from_the_root(capsys, tmp_path):
    """user 23: folders of a job file count from the working directory, and that is said."""
    for command in ("status", "events"):
        error = error_of(capsys, command, str(TINY))
        assert f"{tmp_path}/runs/tiny: " in error
        assert "counts from the working directory" in error
    assert f"{tmp_path}/runs/none: " in error_of(capsys, "status", "runs/none")


def test_all_of_a_key_is_kept():
    """inputs A6: what stands behind '#', and '%' as it is written."""
    storage = open_storage("memory://b/run#1%20a%2Fb?x=#2")
    assert storage._root.strip("/") == "b/run#1%20a%2Fb"
    one, two = open_storage("memory://b/exp#1"), open_storage("memory://b/exp#2")
    one.put("a", b"1")
    assert two.list("") == []
    assert open_storage("file:///x/exp#1").root == Path("/x/exp#1")


def test_options_of_s3_behind_a_number_sign_are_kept():
    """inputs A6: without them it talked to another store."""
    s3 = open_storage("s3://b/run#1?region=r&endpoint_override=http://127.0.0.1:9")
    assert s3._root == "b/run#1"
    assert s3._files.client_kwargs == {"region_name": "r"}
    assert s3._files.endpoint_url == "http://127.0.0.1:9"


def test_a_fresh_start_sets_aside_its_own_key_only(tmp_path):
    """inputs A6: two runs whose URLs differ behind '#' are two runs."""
    one = RunFolder(tmp_path / "one", "memory://two/exp#1")
    two = RunFolder(tmp_path / "two", "memory://two/exp#2")
    for folder in (one, two):
        folder.keep({"seed": 0})
    set_aside(two.places)
    assert one.guarded.list("") == ["fingerprint.json"]
    assert two.guarded.list("finger") == []


SECRETS = (
    "s3://user:SECRET@bucket/x",
    "file://user:SECRET@host/x",
    "abfs://box@account.host/x?account_key=SECRET",
    "gs://bucket/x?token=SECRET",
    "http://127.0.0.1:9/x?sig=SECRET",
    "memory://b/x?Secret_Access=SECRET",
    "s3://b/x?endpoint_override=http://user:SECRET@127.0.0.1:9",
    "s3://b/x?aws_secret_access_key=SECRET",
    "memory://b/x?x=1&password=SECRET",
)


@pytest.mark.parametrize("url", SECRETS)
def test_a_url_with_a_credential_is_refused_before_anything_travels_and_not_repeated(url, capsys):
    """security A7: a URL is written down in many places, so it may hold none."""
    for refuse in (
        lambda: load_job(TINY, [f"checkpoint.url={url}"]),
        lambda: open_storage(url),
    ):
        with pytest.raises(UserError, match=r"credential.* by the environment") as error:
            refuse()
        assert "SECRET" not in str(error.value)
    for arguments in (
        ["run", str(TINY), "--set", f"checkpoint.url={url}"],
        ["run", str(TINY), "--set", f"checkpointurl={url}"],
        ["run", str(TINY), "--set", f"checkpoint.urll={url}"],
        ["run", str(TINY), "--set", f"train.steps={url}"],
        ["run", str(TINY), "--set", f"checkpoint.dir={url}"],
        ["run", str(TINY), "--report", url],
        ["run", url],
        ["submit", str(TINY), "--address", url],
        ["data", "build", url, "--out", "o", "--seq-len", "8"],
        ["checkpoint", "ls", url],
        ["checkpoint", "verify", url.replace("?", "/20?")],
    ):
        assert main(arguments) in {2, 4}
        said = capsys.readouterr()
        assert "SECRET" not in said.err + said.out, arguments


class Broken(MemoryFileSystem):
    """A driver that tells all it knows when it fails."""

    cachable = False

    def cat_file(self, path, **_options):
        raise ValueError(
            f"{path}: GET https://host/x?other=HIDDEN&v=1 by https://me:PASS@host/ failed"
        )

    def pipe_file(self, path, value, **_options):
        raise ValueError(f"PUT {path} of {len(value)} bytes with 'HIDDEN'")


def broken(url):
    storage = open_storage(url, Patience(num_tries=1))
    storage._files = Broken()
    return storage


def test_what_a_driver_says_tells_no_option_of_the_url():
    """security A7: an option whose name gives nothing away, in an error of the library."""
    with pytest.raises(OSError, match=r"get a failed 1 times.*GET https://host/x") as error:
        broken("memory://b/x?other=HIDDEN").get("a")
    assert "HIDDEN" not in str(error.value)
    assert "PASS" not in str(error.value)


def test_a_place_that_cannot_serve_is_named_without_its_options(tmp_path):
    """security A7: the error lines of a run's folder."""
    url = "memory://b/x?other=HIDDEN"
    folder = RunFolder(tmp_path / "run", url)
    folder.guarded = broken(url)
    with pytest.raises(UserError, match=r"memory://b/x\?other=\*\*\*: cannot be written") as error:
        folder.probe()
    assert "HIDDEN" not in str(error.value)


def test_an_option_that_a_file_cannot_have_is_refused(tmp_path):
    """security A7, inputs A6: it was dropped in silence; a question mark of a name is %3F."""
    with pytest.raises(UserError, match="takes no options") as error:
        open_storage(f"file://{tmp_path}/x?k=HIDDEN")
    assert "HIDDEN" not in str(error.value)
    assert open_storage("file:///x%3Fk=1").root == Path("/x?k=1")
