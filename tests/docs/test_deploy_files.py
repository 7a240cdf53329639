"""Files of examples/deploy: forms, names that have to agree, and what the product reads of them."""

import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from ray.serve.schema import ServeDeploySchema

from muxcluster.cluster.ingress.serve_app import ServeArgs
from muxcluster.config.load import load_config
from muxcluster.placement.hardware import gpu_named
from tests.conftest import ROOT

DEPLOY = ROOT / "examples" / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def fields(*required: str, **known: Any) -> dict[str, Any]:
    """A schema of an object with these fields and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": known,
    }


def many(of: Any) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": 1}


TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}  # such as "0", not 0

# The fields of Kubernetes' core/v1 and KubeRay's ray.io/v1 (API reference of 1.6) that are used.
CONTAINER = fields(
    "name",
    "image",
    "resources",
    name=TEXT,
    image=TEXT,
    resources=fields("limits", limits=TEXTS),
    ports=many(fields("containerPort", containerPort=COUNT, name=TEXT)),
    env=many(fields("name", "value", name=TEXT, value=TEXT)),
    volumeMounts=many(
        fields("name", "mountPath", name=TEXT, mountPath=TEXT, readOnly={"type": "boolean"})
    ),
)
VOLUME = fields(
    "name",
    name=TEXT,
    configMap=fields("name", name=TEXT),
    persistentVolumeClaim=fields("claimName", claimName=TEXT, readOnly={"type": "boolean"}),
    emptyDir=fields(medium=TEXT, sizeLimit=TEXT),
)
TEMPLATE = fields(
    "spec", spec=fields("containers", containers=many(CONTAINER), volumes=many(VOLUME))
)
RAY_SERVICE = fields(
    "serveConfigV2",
    "rayClusterConfig",
    serveConfigV2=TEXT,
    rayClusterConfig=fields(
        "headGroupSpec",
        "workerGroupSpecs",
        rayVersion=TEXT,
        authOptions=fields("mode", mode={"enum": ["token"]}),
        headGroupSpec=fields("template", rayStartParams=TEXTS, labels=TEXTS, template=TEMPLATE),
        workerGroupSpecs=many(
            fields(
                "groupName",
                "template",
                groupName=TEXT,
                replicas=COUNT,
                minReplicas=COUNT,
                maxReplicas=COUNT,
                rayStartParams=TEXTS,
                labels=TEXTS,
                template=TEMPLATE,
            )
        ),
    ),
)


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    """The objects of rayservice.yaml by kind."""
    text = (DEPLOY / "rayservice.yaml").read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def cluster(documents: dict[str, Any]) -> dict[str, Any]:
    return dict(documents["RayService"]["spec"]["rayClusterConfig"])


def shaped(text: str, folder: Path) -> Path:
    """Write a configuration whose models have shapes: their weights are on no test machine."""
    file = folder / "muxcluster.yaml"
    file.write_text(re.sub(r"path: /models/[\w.-]+", "shape: llama-2-7b", text))
    return file


def test_the_ray_service_has_the_fields_that_kuberay_knows(documents: dict[str, Any]) -> None:
    service = documents["RayService"]
    assert service["apiVersion"] == "ray.io/v1"
    jsonschema.validate(service["spec"], RAY_SERVICE)
    assert documents["ConfigMap"]["apiVersion"] == "v1"
    jsonschema.validate(documents["ConfigMap"]["data"], TEXTS)


def test_serve_accepts_the_application(documents: dict[str, Any]) -> None:
    config = yaml.safe_load(documents["RayService"]["spec"]["serveConfigV2"])
    (application,) = ServeDeploySchema.model_validate(config).applications
    module, _, function = str(application.import_path).partition(":")
    assert (module, function) == (ServeArgs.__module__, "app")
    arguments = ServeArgs(**application.args)
    # What all pods have: the pods of the workers bring the GPUs that are waited for.
    folder, _, name = arguments.config.rpartition("/")
    assert name in documents["ConfigMap"]["data"]
    assert {"config": folder}.items() <= mounts(documents).items()
    (group,) = documents["RayService"]["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"]) * group["replicas"]
    assert arguments.wait_for_gpus == gpus


def mounts(documents: dict[str, Any]) -> dict[str, str]:
    """Mounted volumes by name, the same in every pod."""
    config = documents["RayService"]["spec"]["rayClusterConfig"]
    groups = [config["headGroupSpec"], *config["workerGroupSpecs"]]
    found = []
    for group in groups:
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        found.append({each["name"]: each["mountPath"] for each in container["volumeMounts"]})
        assert set(found[-1]) == {volume["name"] for volume in spec["volumes"]}
    assert all(each == found[0] for each in found)
    return dict(found[0])


def test_the_planner_reads_the_workers_labels(cluster: dict[str, Any]) -> None:
    for group in cluster["workerGroupSpecs"]:
        assert gpu_named(group["labels"]["ray.io/accelerator-type"]).memory_bytes > 0
        assert group["minReplicas"] == group["replicas"] <= group["maxReplicas"]
        # KubeRay refuses labels among the start parameters.
        assert "labels" not in group["rayStartParams"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"


def test_rays_version_is_one_that_can_be_installed(cluster: dict[str, Any]) -> None:
    (ray,) = (
        requirement
        for requirement in map(Requirement, PROJECT["optional-dependencies"]["serve"])
        if requirement.name == "ray"
    )
    assert cluster["rayVersion"] in ray.specifier


def test_a_silent_pod_is_dead_as_soon_as_a_host(cluster: dict[str, Any]) -> None:
    (container,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    named = {each["name"]: each["value"] for each in container["env"]}
    words = yaml.safe_load((ROOT / "cluster.yaml").read_text())["head_start_ray_commands"][-1]
    checks = dict(word.split("=") for word in words.split() if word.startswith("RAY_health_check"))
    assert checks.items() <= named.items()


def test_configurations_are_read(documents: dict[str, Any], tmp_path: Path) -> None:
    texts = [
        documents["ConfigMap"]["data"]["muxcluster.yaml"],
        (DEPLOY / "muxcluster.yaml").read_text(encoding="utf-8"),
    ]
    for text in texts:
        config = load_config(shaped(text, tmp_path))
        assert str(config.batch_directory).startswith(instructions("WORKDIR")[0])


def instructions(word: str) -> list[str]:
    """What follows `word` in the container file, line by line."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split(None, 1)[1] for line in text.splitlines() if line.startswith(f"{word} ")]


def test_the_image_is_made_of_what_the_project_says() -> None:
    arguments = dict(each.partition("=")[::2] for each in instructions("ARG"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"TORCH ?= {arguments['TORCH']}\n" in makefile
    extras = set(PROJECT["optional-dependencies"])
    (install,) = (each for each in instructions("RUN") if "/src[" in each)
    cases = dict(re.findall(r"(\w+)\) extras=([\w,]+) ;;", install))
    assert set(cases) == {"cpu", "cuda"} and arguments["DEVICE"] in cases
    for named in cases.values():
        assert set(named.split(",")) <= extras
    copied = {name for each in instructions("COPY") for name in each.split()[:-1]}
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in kept if line.startswith("!")}
    assert {name for name in copied if not name.startswith(("--", "/"))} == allowed
    assert all((ROOT / name).exists() for name in allowed)


def test_compose_runs_that_image(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    config = load_config(shaped((DEPLOY / "muxcluster.yaml").read_text(), tmp_path))
    arguments = {each.partition("=")[0] for each in instructions("ARG")}
    for name, service in compose["services"].items():
        build = service["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        assert set(build["args"]) <= arguments and build["args"]["DEVICE"] == name
        assert service["ports"] == [f"127.0.0.1:8000:{config.server.port}"]
        assert config.server.host == "0.0.0.0"
        targets = [
            volume.split(":")[-2 if volume.endswith(":ro") else -1] for volume in service["volumes"]
        ]
        assert targets == ["/etc/muxcluster/muxcluster.yaml", "/models", instructions("WORKDIR")[0]]
        assert f'"{targets[0]}"' in instructions("CMD")[0]
        assert service["healthcheck"]["test"][-1].endswith(f":{config.server.port}/health")
    gpu = compose["services"]["cuda"]["deploy"]["resources"]["reservations"]["devices"]
    assert gpu == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
