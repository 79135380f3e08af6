"""Which storage a URL stands for."""

from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import fsspec

from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.storage.patience import Patience, without
from remesh.actors.storage.remote_storage import OBJECT_STORES, RemoteStorage
from remesh.actors.storage.run_place import RunPlace
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import is_url, masked, place_problem

_S3_OPTIONS = {"endpoint_override", "scheme", "region"}
_CONNECT_S = 5
_INSTALL = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"} | dict.fromkeys(
    ("abfs", "abfss", "az"), "adlfs"
)


def open_storage(url: str, patience: Patience | None = None) -> RunPlace:
    """A path, `file://`, `s3://bucket/prefix?endpoint_override=...&region=...`, or any other URL
    for which fsspec has a driver; its options follow the question mark.

    Nothing is asked of the place yet. Raises: UserError with the cure.
    """
    if problem := place_problem(url):
        raise UserError(f"{masked(url)} {problem}")
    if not is_url(url):
        return LocalStorage(Path(url))
    parts = _parts(url)
    if parts.scheme in ("file", "local"):
        return LocalStorage(_file_path(parts))
    if parts.scheme in OBJECT_STORES and not parts.netloc:
        raise UserError(f"{masked(url)}: names no bucket; write {parts.scheme}://BUCKET/FOLDER")
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    hidden = tuple(options.values())
    place = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if parts.scheme in ("s3", "s3a"):
        options = _s3_options(place, options)
    try:
        files, root = fsspec.core.url_to_fs(place, **options)
    except (ImportError, ValueError) as error:
        package = _INSTALL.get(parts.scheme)
        cure = f"pip install {package}" if package else "use a path or another URL"
        said = without(hidden, str(error))
        raise UserError(f"{place}: cannot be opened: {said}; {cure}") from None
    if parts.scheme in ("s3", "s3a"):
        files.retries = 1  # all tries are counted by our patience, and so are their answers
        hidden = ()  # it takes no option that is secret
    return RemoteStorage(files, root, place, patience, hidden)


def inside(url: str, name: str) -> str:
    """The URL of a folder in the one that a URL stands for."""
    place, mark, options = url.partition("?") if is_url(url) else (url, "", "")
    return f"{place.rstrip('/')}/{name}{mark}{options}"


def _parts(url: str) -> SplitResult:
    """A key may hold a '#', which starts nothing here."""
    try:
        return urlsplit(url, allow_fragments=False)
    except ValueError as error:
        raise UserError(f"{masked(url)}: is no URL: {error}") from None


def _file_path(parts: SplitResult) -> Path:
    if parts.query:
        raise UserError(
            f"{masked(parts.geturl())}: a file's URL takes no options; write a question mark that "
            f"belongs to the name as %3F"
        )
    return Path(unquote(parts.path))


def _s3_options(place: str, options: dict[str, str]) -> dict[str, Any]:
    """Those of pyarrow.fs, as s3fs calls them."""
    unknown = options.keys() - _S3_OPTIONS
    if unknown:
        raise UserError(
            f"{place}: {min(unknown)} is no option of s3; "
            f"use {', '.join(sorted(_S3_OPTIONS))}, and the environment for credentials"
        )
    endpoint = options.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
    return {
        "endpoint_url": endpoint,
        "client_kwargs": {"region_name": options["region"]} if "region" in options else {},
        "config_kwargs": {
            "connect_timeout": _CONNECT_S,
            "retries": {"total_max_attempts": 1},
        },
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }
