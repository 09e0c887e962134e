"""What a DAG file pays for: names that load on first use, and no cloud SDK or Kubernetes client when it is parsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_gpu_provider
from tests.fakes.aks import install

OF_A_SPEC = {"machine_types", "pool", "rules", "series"}
"""The modules of a cloud that hold its pool, and what that has to know."""

HEAVY = {"kubernetes", "kubernetes_asyncio", "boto3", "botocore", "google.cloud", "aiohttp", "moto"}

MOST = 1.025
"""The modules of a DAG file with a pool's tasks, for each that Airflow itself loads for a DAG file with tasks."""

PROGRAM = """
import json, sys
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator  # what each DAG file loads; airflow.sdk itself is lazy
with DAG("before"):
    BaseOperator(task_id="task")
    BaseSensorOperator(task_id="sensor")
before = set(sys.modules)
from airflow_gpu_provider import EnsureGpuPoolOperator, GkeGpuPool, ScaleDownSensor
here = {"project_id": "my-project", "location": "us-central1", "cluster_name": "c"}
pool = GkeGpuPool(name="a", **here, machine_types=["g2-standard-4"], max_nodes=1)
with DAG("nightly"):
    ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool)
    ensure.as_setup() >> ScaleDownSensor(task_id="scale_down", gpu_pool=pool).as_teardown(setups=ensure)
parsed = set(sys.modules)
from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.notifications import GpuNightNotifier
print(json.dumps([sorted(before), sorted(parsed), sorted(sys.modules)]))
"""

TRIGGERS = """
import sys
from airflow_gpu_provider.triggers import device_plugin_ready, pod, pool
print(*sorted({"boto3", "google.cloud.container_v1", "kubernetes.client"} & sys.modules.keys()))
"""

DEFERS = """
import sys
from airflow_gpu_provider.triggers import pool
print(*sorted({"aiohttp", "airflow_gpu_provider.training"} & sys.modules.keys()))
"""

KINDS = """
from airflow.sdk import DAG
from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator
from airflow_gpu_provider.clouds import pool_kinds
with DAG("nightly"):
    pool = EksGpuPool(name="a", cluster_name="c", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
    EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool)
assert pool_kinds.deserialize_pool(pool.serialize()) == pool
try:
    pool_kinds.deserialize_pool({"kind": "aks"})
except Exception as error:
    print(error)
"""


Modules = tuple[set[str], set[str], set[str]]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """Those of Airflow, with those of a pool's tasks in a DAG, and with those of each other kind of pool."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, parsed, after = json.loads(done.stdout.splitlines()[-1])
    return set(before), set(parsed), set(after)


def test_spec_ensure_and_sensor_load_no_sdk(modules: Modules) -> None:
    before, _, after = modules
    assert not (after - before) & HEAVY


def test_a_dag_file_with_spec_ensure_and_sensor_adds_at_most_a_fortieth_to_airflow(modules: Modules) -> None:
    """Of the kinds of pool, GKE's has the most modules."""
    before, parsed, _ = modules
    assert len(parsed) <= MOST * len(before), parsed - before


def test_spec_ensure_and_sensor_load_of_this_package_what_a_dag_file_needs(modules: Modules) -> None:
    before, _, after = modules
    ours = {name for name in after - before if name.startswith("airflow_gpu_provider.")}
    assert not {name for name in ours if name.split(".")[1] in ("cluster", "scaling", "triggers")}
    of_clouds = {tuple(name.split(".")[2:]) for name in ours if name.split(".")[1] == "clouds"}
    assert {each[1] for each in of_clouds if len(each) > 1} == OF_A_SPEC
    assert {each[0] for each in of_clouds if len(each) == 1} == {"aws", "google", "kubernetes"}


def test_triggers_load_no_client_that_would_block_the_triggerer_for_a_second() -> None:
    done = subprocess.run([sys.executable, "-c", TRIGGERS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_a_worker_that_defers_to_a_pools_trigger_loads_no_watches() -> None:
    done = subprocess.run([sys.executable, "-c", DEFERS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_parsing_a_dag_reads_no_entry_points_of_kinds(tmp_path: Path) -> None:
    """They would be an error here, and are one as soon as a kind is unknown."""
    install(tmp_path, "company", "eks = no.such:Class")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))}
    done = subprocess.run([sys.executable, "-c", KINDS], capture_output=True, text=True, check=True, env=env)
    assert "airflow-gpu-provider and company" in done.stdout.splitlines()[-1]


def test_every_public_name_is_there_and_only_those() -> None:
    for name in airflow_gpu_provider.__all__:
        assert getattr(airflow_gpu_provider, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = airflow_gpu_provider.no_such_name
