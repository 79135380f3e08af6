"""What a user's text names, a path or a URL, and texts and numbers as they are shown.

A URL is written down in many places: the run's journal, the driver's log, errors, the cluster's
list of jobs. So one that holds a credential is refused where it comes in, and as a second guard
whatever is shown goes through `masked`.
"""

import os
import re
from os import PathLike
from pathlib import Path
from urllib.parse import parse_qsl

from remesh.orchestrator.user_errors import UserError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# pathlib makes one slash of two; a single letter in front of a colon is somebody's disk.
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
# Up to the last @ in front of the question mark: secrets have slashes. A port is no password.
_PASSWORD = re.compile(r"(://[^/\s:@?'\"]*:)(?!\d{1,5}(?:[/?\s]|$))[^\s?'\"]*@")
_OPTION = re.compile(r"([?&])([^=&\s'\"]+)=([^&\s'\"]+)")
_SHOWN_OPTIONS = {"endpoint_override", "region", "scheme"}
_SECRET_NAME = re.compile(
    r"key|secret|token|passw|pwd|sig|cred|auth|connection_string", re.IGNORECASE
)
_NO_SECRETS = {"anon", "cloud", "google_default"}  # words for where gcsfs finds its token
_WORD_WITH_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/[^\s'\"]+")
_HIDDEN = "***"


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def path_problem(text: str) -> str | None:
    """Why a text cannot be the path of a folder or a file."""
    if is_url(text) or _ONE_SLASH.match(text):
        return "is a URL and a path is expected; only checkpoint.url takes a URL"
    if text.startswith("~") and _expanded(text, "").startswith("~"):
        user = text.partition("/")[0]
        return (
            f"names the home folder of {user[1:]}, who has no home here; write it out, or ./{user}"
        )
    return None


def place_problem(text: str) -> str | None:
    """Why a text cannot be a place for checkpoints, which is a URL or a path."""
    if is_url(text):
        return _credential_problem(text)
    if nearly := _ONE_SLASH.match(text):
        scheme, rest = nearly[1], text[nearly.end() :]
        slashes = ":///" if scheme.lower() in ("file", "local") else "://"
        return f"has one slash; write {scheme}{slashes}{rest}"
    return path_problem(text)


def root_problem(text: str) -> str | None:
    """Why a text cannot be the path of a folder whose files come and go."""
    if not is_url(text) and os.path.normpath(text).strip("/") == "":
        return "is the root of all folders; name one below it"
    return None


def read_only_problem(text: str) -> str | None:
    """Why nothing can be written at a URL."""
    if text.lower().startswith(("http://", "https://")):
        return (
            "can only be read; name a bucket, such as s3://bucket/run, with the host of a store of "
            "your own as ?endpoint_override=HOST"
        )
    return None


def from_home(text: str, home: str = "") -> str:
    """A path with `~` in front of it written out; `home` is that of who runs this by default."""
    return text if is_url(text) else _expanded(text, home)


def path_text(text: str) -> str:
    """A path on the command line. Raises: UserError if it is none."""
    if problem := path_problem(text):
        raise UserError(f"{masked(text)} {problem}")
    return from_home(text)


def user_path(text: str) -> Path:
    """Likewise, as a path."""
    return Path(path_text(text))


def given_path(path: str | PathLike[str]) -> Path:
    """What a caller names: a text as a user would write it, `~` and all, or a path as it is.

    Raises: UserError if a text is no path.
    """
    if isinstance(path, str):
        return user_path(path)
    if not isinstance(path, PathLike):
        raise TypeError(f"a path: expected str or os.PathLike, not {type(path).__name__}")
    return Path(path)


def place_text(text: str) -> str:
    """A path or a URL on the command line. Raises: UserError if it is neither."""
    if problem := place_problem(text):
        raise UserError(f"{masked(text)} {problem}")
    return from_home(text)


def masked(text: str) -> str:
    """The text without what may be secret in its URLs: passwords and the values of options."""
    return _WORD_WITH_URL.sub(lambda word: _masked_url(word[0]), text)


def _masked_url(url: str) -> str:
    return _OPTION.sub(_masked_option, _PASSWORD.sub(rf"\1{_HIDDEN}@", url))


def _masked_option(option: re.Match[str]) -> str:
    mark, name, value = option.groups()
    return f"{mark}{name}={value if name in _SHOWN_OPTIONS else _HIDDEN}"


def _credential_problem(url: str) -> str | None:
    holds = "a password" if _PASSWORD.search(url) else None
    _, _, query = url.partition("?")
    for name, value in parse_qsl(query, keep_blank_values=True):
        if _SECRET_NAME.search(name) and value not in _NO_SECRETS:
            holds = holds or name
    if holds is None:
        return None
    return (
        f"holds a credential ({holds}), and a URL is written to logs; give it by the environment "
        f"variables of its driver"
    )


def count(number: int, noun: str, one: str = "", many: str = "") -> str:
    """The number with what it counts, such as "1 node", "3 leaves"; `one` and `many` are verbs."""
    verb = one if number == 1 else many
    counted = f"{number:,} {noun if number == 1 else plural(noun)}"
    return f"{counted} {verb}" if verb else counted


def plural(noun: str) -> str:
    if noun.endswith("leaf"):
        return f"{noun[:-1]}ves"
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"


def byte_text(num_bytes: float) -> str:
    """Such as "4.1 MB", "17 GB"."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if num_bytes < 1000 or unit == "PB":  # noqa: PLR2004 - as users count
            break
        num_bytes /= 1000
    shown = f"{num_bytes:.2g}" if num_bytes < 10 else f"{num_bytes:,.0f}"  # noqa: PLR2004
    return f"{shown} {unit}"


def _expanded(text: str, home: str) -> str:
    first, slash, rest = text.partition("/")
    if first == "~" and home:
        return f"{home}{slash}{rest}"
    return os.path.expanduser(text)  # noqa: PTH111 - a text stays as it is written
