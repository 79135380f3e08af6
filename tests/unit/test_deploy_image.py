"""The image: made of the tree, with what a deployed run needs, and nothing that it writes to."""

import shlex
import tomllib
from pathlib import Path

from kuberay import DEPLOY, templates, the
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STORES = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}
WRITABLE = {"/tmp", "/home/ray", "/dev/shm"}


def steps():
    """The instructions of the Dockerfile, each with the rest of its line."""
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    split = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return [(step, rest) for step, rest in split]


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def extra(name):
    return [Requirement(text) for text in PROJECT["project"]["optional-dependencies"][name]]


def test_it_is_made_of_files_of_the_tree():
    copied = [Path(name) for step, rest in steps() if step == "COPY" for name in rest.split()[:-1]]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{path}" for path in copied} == {line for line in allowed if line.startswith("!")}
    folders = {
        Path(folder).parts[0] for folder in PROJECT["tool"]["setuptools"]["package-dir"].values()
    }
    assert folders <= set(map(str, copied))
    assert ("USER", "1000") in steps()


def test_it_can_save_to_every_store_whose_package_an_error_names():
    """user 8, inputs B6"""
    (installed,) = [rest for step, rest in steps() if step == "RUN" and "pip install" in rest]
    (own,) = [word for word in shlex.split(installed) if word.startswith(".")]
    assert own == f".[{','.join(STORES)}]"


def test_the_package_of_each_store_is_pinned_within_its_range():
    """user 8"""
    for store, package in STORES.items():
        (requirement,) = extra(store)
        assert requirement.name == package
        assert requirement.specifier.contains(pins()[canonicalize_name(package)])


def test_its_base_is_one_exact_version_that_can_be_pinned_by_digest():
    """security A6: by --build-arg, as the digest is known only to who can ask a registry."""
    assert steps()[0][0] == "ARG"
    name, _, base = steps()[0][1].partition("=")
    assert base.startswith("python:3.11.")
    assert steps()[1] == ("FROM", f"${{{name}}}")


def test_it_says_what_it_is_and_ends_its_orphans():
    """user section 3: labels of OCI, and tini as the process that reaps."""
    labels = dict(
        pair.split("=", 1)
        for step, rest in steps()
        if step == "LABEL"
        for pair in shlex.split(rest)
    )
    project = PROJECT["project"]
    assert labels == {
        "org.opencontainers.image.title": "Remesh",
        "org.opencontainers.image.description": project["description"],
        "org.opencontainers.image.version": project["version"],
        "org.opencontainers.image.licenses": project["license"],
    }
    (entry,) = [rest for step, rest in steps() if step == "ENTRYPOINT"]
    assert entry == '["tini", "--"]'
    assert any(step == "RUN" and " tini " in f"{rest} " for step, rest in steps())


def test_a_pod_writes_only_to_volumes_of_bounded_size():
    """security A6: the image is read-only, and so a pod's disk has a limit too."""
    assert set(said_to_be_writable()) == WRITABLE
    for template in templates():
        (container,) = template["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        for resources in (container["resources"]["requests"], container["resources"]["limits"]):
            assert "ephemeral-storage" in resources
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        trains = template is not the("RayJob")["spec"]["submitterPodTemplate"]
        assert mounted >= (WRITABLE if trains else WRITABLE - {"/dev/shm"})
        for volume in template["spec"]["volumes"]:
            assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""})


def said_to_be_writable():
    """The folders that the Dockerfile names as those that a process writes to."""
    (line,) = [
        line
        for line in (DEPLOY / "Dockerfile").read_text().splitlines()
        if line.startswith("# Written to")
    ]
    return [word.strip(",.") for word in line.split() if word.startswith("/")]
