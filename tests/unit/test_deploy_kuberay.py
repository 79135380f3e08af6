"""The manifests for Kubernetes and the image: they fit the schemas, each other and the project."""

import shlex
import tomllib
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml
from needed import shared

from remesh.cli.main import main
from remesh.orchestrator.job.job import parse_job

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kuberay").glob("*.yaml"))
LABEL = {"app.kubernetes.io/part-of": "remesh"}
SCHEMAS = {"RayCluster": "ray.io_rayclusters.yaml", "RayJob": "ray.io_rayjobs.yaml"}
SUBMISSION_MODES = {"K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"}


@cache
def documents():
    loaded = [d for path in MANIFESTS for d in yaml.safe_load_all(path.read_text())]
    return {document["kind"]: document for document in loaded}


def closed(schema):
    """The schema with no key allowed that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    open_object = schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and isinstance(schema["properties"], dict) and not open_object:
        result.setdefault("additionalProperties", False)
    return result


@cache
def schema_of(kind):
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    definition = yaml.load(shared(f"kuberay-crds/{SCHEMAS[kind]}").read_text(), loader)
    (version,) = [v for v in definition["spec"]["versions"] if v["name"] == "v1"]
    return closed(version["schema"]["openAPIV3Schema"])


def clusters():
    return [documents()["RayCluster"]["spec"], documents()["RayJob"]["spec"]["rayClusterSpec"]]


def templates():
    """The template of every pod that a manifest asks for."""
    for cluster in clusters():
        yield cluster["headGroupSpec"]["template"]
        yield from (group["template"] for group in cluster["workerGroupSpecs"])
    yield documents()["RayJob"]["spec"]["submitterPodTemplate"]


def version_of_ray():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.removeprefix("ray==") for line in lines if line.startswith("ray=="))


@pytest.fixture(scope="module", params=list(SCHEMAS))
def kind_and_schema(request):
    return request.param, schema_of(request.param)


def test_a_manifest_has_no_key_and_no_type_that_the_schema_does_not_know(kind_and_schema):
    kind, schema = kind_and_schema
    jsonschema.Draft202012Validator(schema).validate(documents()[kind])


def test_the_schema_refuses_a_typing_error(kind_and_schema):
    kind, schema = kind_and_schema
    wrong = documents()[kind] | {"spec": documents()[kind]["spec"] | {"rayVersio": "2"}}
    with pytest.raises(jsonschema.ValidationError, match="rayVersio"):
        jsonschema.Draft202012Validator(schema).validate(wrong)


def test_the_clusters_run_the_ray_that_remesh_is_pinned_to():
    for cluster in clusters():
        assert cluster["rayVersion"] == version_of_ray()
        assert cluster["authOptions"] == {"mode": "token"}


def test_groups_have_places_within_their_bounds():
    for cluster in clusters():
        for group in cluster["workerGroupSpecs"]:
            assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_head_offers_no_places_and_a_worker_one_for_each_processor():
    for cluster in clusters():
        assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        for group in cluster["workerGroupSpecs"]:
            (container,) = group["template"]["spec"]["containers"]
            places = group["rayStartParams"]["num-cpus"]
            assert container["resources"]["limits"]["cpu"] == places


def test_every_pod_is_of_remesh_closed_and_bounded():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for template in templates():
        assert template["metadata"]["labels"] == LABEL
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        assert template["spec"]["automountServiceAccountToken"] is False
        (container,) = template["spec"]["containers"]
        assert container["image"] == f"remesh:{version}"
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]) == {"requests", "limits"}


def test_every_volume_that_is_mounted_is_there():
    names = {document["metadata"]["name"] for document in documents().values()}
    for template in templates():
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", ())}
        for mount in template["spec"]["containers"][0].get("volumeMounts", ()):
            volume = volumes.pop(mount["name"])
            assert volume.get("persistentVolumeClaim", {}).get("claimName", "remesh-runs") in names
            assert volume.get("configMap", {}).get("name", "remesh-job") in names
        assert not volumes


def test_the_job_starts_a_command_that_there_is_on_a_job_file_that_holds():
    spec = documents()["RayJob"]["spec"]
    assert spec["submissionMode"] in SUBMISSION_MODES
    command, verb, path, option, address = shlex.split(spec["entrypoint"])
    assert (command, verb, option) == ("remesh", "run", "--address")
    assert main([verb, "--help"]) == 0
    container = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert address == f"127.0.0.1:{ports['gcs']}"
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(Path(path).parent) in mounts
    job = the_job(Path(path).name)
    assert all(str(folder).startswith("/runs/") for folder in (job.run_dir, job.data.dir))
    assert (job.metrics.host, job.metrics.port) == ("0.0.0.0", ports["metrics"])


def test_the_job_fits_the_places_of_its_cluster():
    (group,) = documents()["RayJob"]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    places = int(group["rayStartParams"]["num-cpus"])
    job = the_job("job.toml")
    assert job.elastic.min_workers <= group["replicas"] * places
    assert job.max_dp + job.elastic.spares <= group["maxReplicas"] * places


def test_only_pods_of_remesh_reach_the_ports_of_training():
    policy = documents()["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == {"matchLabels": LABEL}
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    own = {"podSelector": {"matchLabels": LABEL}}
    for rules, peers in ((policy["ingress"], "from"), (policy["egress"], "to")):
        for rule in rules:
            assert rule[peers] == [own] or rule["ports"]
    opened = {port["port"] for rule in policy["ingress"] for port in rule.get("ports", ())}
    head = documents()["RayCluster"]["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in head["ports"]}
    assert opened == {ports["dashboard"], ports["metrics"]}


def test_prometheus_finds_the_heads_by_the_service_of_the_manifests():
    service = documents()["Service"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() >= LABEL.items()
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus-kubernetes.yml").read_text())
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert found["names"] == [f"{service['metadata']['name']}.default.svc"]
    assert found["port"] == service["spec"]["ports"][0]["port"] == the_job("job.toml").metrics.port


def test_the_image_is_made_of_files_of_the_tree():
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    copied = [Path(name) for step, rest in steps if step == "COPY" for name in rest.split()[:-1]]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{path}" for path in copied} == {line for line in allowed if line.startswith("!")}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {Path(folder).parts[0] for folder in packages["package-dir"].values()}
    assert folders <= set(map(str, copied))
    assert steps[0][1].startswith("python:3.11")
    assert ["USER", "1000"] in steps


def the_job(name):
    return parse_job(documents()["ConfigMap"]["data"][name], name=name)
