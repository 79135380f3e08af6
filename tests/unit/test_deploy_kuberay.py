"""The manifests for Kubernetes and the image: they fit the schemas, each other and the project."""

import shlex
import tomllib
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml
from kuberay import DEPLOY, LABEL, clusters, documents, templates, the, the_job
from needed import shared

from remesh.cli.main import main

ROOT = Path(__file__).parents[2]
SCHEMAS = {"RayCluster": "ray.io_rayclusters.yaml", "RayJob": "ray.io_rayjobs.yaml"}
SUBMISSION_MODES = {"K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"}


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


def version_of_ray():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.removeprefix("ray==") for line in lines if line.startswith("ray=="))


@pytest.fixture(scope="module", params=list(SCHEMAS))
def kind_and_schema(request):
    return request.param, schema_of(request.param)


def test_a_manifest_has_no_key_and_no_type_that_the_schema_does_not_know(kind_and_schema):
    kind, schema = kind_and_schema
    jsonschema.Draft202012Validator(schema).validate(the(kind))


def test_the_schema_refuses_a_typing_error(kind_and_schema):
    kind, schema = kind_and_schema
    wrong = the(kind) | {"spec": the(kind)["spec"] | {"rayVersio": "2"}}
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
    names = {document["metadata"]["name"] for document in documents()}
    for template in templates():
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", ())}
        for mount in template["spec"]["containers"][0].get("volumeMounts", ()):
            volume = volumes.pop(mount["name"])
            assert volume.get("persistentVolumeClaim", {}).get("claimName", "remesh-runs") in names
            assert volume.get("configMap", {}).get("name", "remesh-job") in names
        assert not volumes


def test_the_job_starts_a_command_that_there_is_on_a_job_file_that_holds():
    spec = the("RayJob")["spec"]
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
    (group,) = the("RayJob")["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    places = int(group["rayStartParams"]["num-cpus"])
    job = the_job()
    assert job.elastic.min_workers <= group["replicas"] * places
    assert job.max_dp + job.elastic.spares <= group["maxReplicas"] * places


def test_prometheus_finds_the_heads_by_the_service_of_the_manifests():
    service = the("Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() >= LABEL.items()
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus-kubernetes.yml").read_text())
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert found["names"] == [f"{service['metadata']['name']}.default.svc"]
    assert found["port"] == service["spec"]["ports"][0]["port"] == the_job().metrics.port


def test_no_failure_makes_a_new_cluster_by_itself():
    """user section 3: KubeRay tries all failures again alike, a wrong job file (exit code 2) and
    a stop (143) too: its schema has no rule by exit code.
    """
    properties = schema_of("RayJob")["properties"]["spec"]["properties"]
    assert not [key for key in properties if "polic" in key.lower()]
    assert set(properties["submitterConfig"]["properties"]) == {"backoffLimit"}
    assert the("RayJob")["spec"]["backoffLimit"] == 0


def test_a_drain_of_nodes_leaves_a_run_the_pods_that_it_needs():
    """user section 3: a budget for the workers, and one that keeps the head."""
    budgets = [document for document in documents() if document["kind"] == "PodDisruptionBudget"]
    specs = {b["spec"]["selector"]["matchLabels"]["ray.io/node-type"]: b["spec"] for b in budgets}
    for spec in specs.values():
        assert spec["selector"]["matchLabels"].items() >= LABEL.items()
        # Of pods of a kind that Kubernetes cannot scale it counts only how many are there.
        assert set(spec) == {"selector", "minAvailable"}
    assert specs["head"]["minAvailable"] == 1
    for cluster in clusters():
        (group,) = cluster["workerGroupSpecs"]
        places = int(group["rayStartParams"]["num-cpus"])
        assert specs["worker"]["minAvailable"] * places >= the_job().elastic.min_workers
        assert specs["worker"]["minAvailable"] < group["replicas"]
