"""Where a pod has its code: at /app of the container that trains, unless its author has something else there."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.client import models as k8s

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.training.code.code_maps import VOLUME
from tests.unit.training import test_manifest_placement as of_manifest
from tests.unit.training.manifests import a
from tests.unit.training.test_pod_placement import a_pod, placed

CODE = k8s.V1Volume(name=VOLUME, projected=k8s.V1ProjectedVolumeSource(sources=[]))
MOUNT = {"mountPath": "/app", "name": VOLUME, "readOnly": True}


def mounted(container: dict[str, Any]) -> bool:
    return MOUNT in container["volumeMounts"]


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def test_the_container_that_trains_has_it_and_no_other() -> None:
    pod = a_pod(spec={"init_containers": [k8s.V1Container(name="first")]})
    pod.spec.containers.append(k8s.V1Container(name="sidecar"))
    spec = placed(pod, code=CODE)["spec"]
    base, sidecar = spec["containers"]
    assert mounted(base)
    assert (base["workingDir"], variables(base)) == ("/app", {"PYTHONPATH": "/app"})
    assert {"name": VOLUME, "projected": {"sources": []}} in spec["volumes"]
    assert not any("volumeMounts" in each for each in (sidecar, *spec["initContainers"]))


def test_a_working_directory_and_a_pythonpath_stay() -> None:
    pod = a_pod(working_dir="/srv", env=[k8s.V1EnvVar(name="PYTHONPATH", value="/lib")])
    base = placed(pod, code=CODE)["spec"]["containers"][0]
    assert mounted(base)
    assert (base["workingDir"], variables(base)) == ("/srv", {"PYTHONPATH": "/lib"})


def test_another_volume_in_its_place_is_refused() -> None:
    pod = a_pod(volume_mounts=[k8s.V1VolumeMount(name="data", mount_path="/app/")])
    with pytest.raises(PoolSpecError, match="mounts a volume at /app"):
        placed(pod, code=CODE)


def test_the_template_of_a_job_has_it() -> None:
    (template,) = of_manifest.templates(of_manifest.placed(a("Job"), code=CODE)).values()
    container = template.template["spec"]["containers"][0]
    assert mounted(container)
    assert (container["workingDir"], variables(container)["PYTHONPATH"]) == ("/app", "/app")
