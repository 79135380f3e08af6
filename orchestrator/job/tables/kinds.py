"""Kinds of values in the job file. Each is checked here, once; the rest of Remesh trusts it.

The types are strict: a job file that says `steps = "80"` or `steps = true` is a mistake, and
turning it into a number would hide it.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo

from remesh.orchestrator.user_text import (
    from_home,
    path_problem,
    place_problem,
    read_only_problem,
    root_problem,
)

TABLE = ConfigDict(
    extra="forbid",
    frozen=True,
    defer_build=True,  # who is handed a job checks nothing
    strict=True,
    allow_inf_nan=False,
    protected_namespaces=(),
    use_attribute_docstrings=True,
)

Count = Annotated[int, Field(ge=1, le=2**40)]
CountOrZero = Annotated[int, Field(ge=0, le=2**40)]
MAX_DIMENSION, MAX_DEGREE = 2**20, 2**16
Dimension = Annotated[int, Field(ge=1, le=MAX_DIMENSION)]
Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE)]
DegreeOrZero = Annotated[int, Field(ge=0, le=MAX_DEGREE)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
PathText = Annotated[str, Field(min_length=1, max_length=4096)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Degrees = Annotated[tuple[Degree, ...], Field(strict=False, max_length=100)]
DimensionOrZero = Annotated[int, Field(ge=0, le=MAX_DIMENSION)]
FloatKind = Literal["fp32", "bf16"]


def _path(text: str, info: ValidationInfo) -> str:
    return _from_home(text, path_problem(text) or root_problem(text), info)


def _place(text: str, info: ValidationInfo) -> str:
    problem = place_problem(text) or root_problem(text) or read_only_problem(text)
    return _from_home(text, problem, info)


def _from_home(text: str, problem: str | None, info: ValidationInfo) -> str:
    """`~` is the home of who has written the job, where the context names it."""
    if problem:
        raise ValueError(problem)
    return from_home(text, (info.context or {}).get("home", ""))


Folder = Annotated[PathText, AfterValidator(_path)]
FolderOrUrl = Annotated[PathText, AfterValidator(_place)]  # a folder or a URL
