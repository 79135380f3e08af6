"""The manifests under deploy/kuberay, as tests look at them."""

from functools import cache
from pathlib import Path

import yaml

from remesh.orchestrator.job.job import parse_job

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kuberay").glob("*.yaml"))
LABEL = {"app.kubernetes.io/part-of": "remesh"}


@cache
def documents():
    return [d for path in MANIFESTS for d in yaml.safe_load_all(path.read_text())]


def the(kind, name=None):
    """The manifest of a kind, by its name where there are several."""
    (found,) = [
        document
        for document in documents()
        if document["kind"] == kind and name in (None, document["metadata"]["name"])
    ]
    return found


def clusters():
    return [the("RayCluster")["spec"], the("RayJob")["spec"]["rayClusterSpec"]]


def templates():
    """The template of every pod that a manifest asks for."""
    for cluster in clusters():
        yield cluster["headGroupSpec"]["template"]
        yield from (group["template"] for group in cluster["workerGroupSpecs"])
    yield the("RayJob")["spec"]["submitterPodTemplate"]


def the_job(name="job.toml"):
    """The job file of the manifests."""
    return parse_job(the("ConfigMap")["data"][name], name=name)
