"""A task's own code in pods of an image that knows nothing of it: what is mounted, for how long, and what is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.model.code_record import CODE
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE, KIND_LABEL
from airflow_gpu_provider.errors import CodeUnusable, PodFailed
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.running import context_of, copy_of, first_event, lines_of, resumption, run

DAG_FILE = "dags/nightly.py"
TRAIN = """\
import json, os, pathlib, sys
from trainer.version import VERSION
if VERSION == "asks" and os.environ["AIRFLOW_GPU_ATTEMPT"] == "1":
    sys.exit(75)
if VERSION == "fails":
    sys.exit(3)
here = pathlib.Path()
files = sorted(str(path) for path in here.rglob("*") if path.is_file())
facts = {"version": VERSION, "cwd": os.getcwd(), "files": files, "runs": os.access("run.sh", os.X_OK)}
print("VERSION", VERSION, *here.joinpath("weights.bin").read_bytes())
pathlib.Path("/airflow/xcom/return.json").write_text(json.dumps(facts)) if "result" in sys.argv else None
"""
TRAVELS = ["dags/nightly.py", "run.sh", "trainer/__init__.py", "trainer/train.py", "trainer/version.py", "weights.bin"]


@pytest.fixture(scope="module")
def env(env: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
        yield


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    return with_nodes(eks_pool(gpu_sandbox, "code", max_nodes=2), nodes=2)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    files = {DAG_FILE: "", "trainer/__init__.py": "", "trainer/train.py": TRAIN, "run.sh": "", ".env": "TOKEN=1"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "weights.bin").write_bytes(b"\xff\x00")
    set_version(tmp_path, "first")
    return tmp_path


def set_version(bundle: Path, version: str) -> None:
    (bundle / "trainer" / "version.py").write_text(f"VERSION = {version!r}")


@pytest.fixture
def core() -> Iterator[client.CoreV1Api]:
    """The cluster, as its administrator; a test leaves no code."""
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    yield core
    assert left(core) == []


def left(core: client.CoreV1Api) -> list[str]:
    """Return the names of what there is of code."""
    maps = core.list_namespaced_config_map("default").items
    leases = client.CoordinationV1Api(core.api_client).list_namespaced_lease(
        DEMAND_NAMESPACE, label_selector=f"{KIND_LABEL}={CODE}"
    )
    return [each.metadata.name for each in (*maps, *leases.items) if each.metadata.name != "kube-root-ca.crt"]


def in_dag(bundle: Path, make: Callable[[], Any]) -> Any:
    """Return a task of the DAG that a worker has read from the bundle."""
    with DAG("nightly", schedule=None) as dag:
        task = make()
    dag.fileloc, dag.relative_fileloc = str(bundle / DAG_FILE), DAG_FILE
    return task


def training(pool: EksGpuPool, bundle: Path, *arguments: str, **changes: Any) -> GpuPodOperator:
    given = {"task_id": "train", "image": "python:3.12", "code": "bundle", **changes}
    cmds = ["python", "trainer/train.py", *arguments]
    return in_dag(bundle, lambda: GpuPodOperator(gpu_pool=pool, cmds=cmds, **given))


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "blocking"])
def test_an_image_without_the_code_trains_with_it(
    pool: EksGpuPool, bundle: Path, core: client.CoreV1Api, deferrable: bool
) -> None:
    task = training(pool, bundle, "result", do_xcom_push=True, deferrable=deferrable)
    result, lines = lines_of(lambda: run(task))
    assert result == {"version": "first", "cwd": "/app", "files": TRAVELS, "runs": True}
    assert "Left out of the code, it may be secret: .env." in lines
    assert [line for line in lines if line.startswith("Mounting the code at /app: 6 files, 1 KiB, in 1 ConfigMap in")]


def test_a_resume_has_the_code_that_its_try_began_with(pool: EksGpuPool, bundle: Path, core: client.CoreV1Api) -> None:
    set_version(bundle, "asks")
    again = {"checkpoint": "s3://bucket/folder", "resume_on_exit_codes": [75], "do_xcom_push": True}
    task = training(pool, bundle, "result", **again)
    context = context_of(task)
    with pytest.raises(TaskDeferred) as first:
        task.execute(context)
    set_version(bundle, "changed")
    event = asyncio.run(first_event(copy_of(first.value.trigger)))
    elsewhere = training(pool, bundle, "result", **again)
    with pytest.raises(TaskDeferred) as second:
        resumption(elsewhere, first.value, context, event)()
    event = asyncio.run(first_event(copy_of(second.value.trigger)))
    assert resumption(training(pool, bundle, "result", **again), second.value, context, event)()["version"] == "asks"
    assert run(training(pool, bundle, "result", do_xcom_push=True))["version"] == "changed"


def test_each_rank_of_a_gang_has_the_code(pool: EksGpuPool, bundle: Path, core: client.CoreV1Api) -> None:
    _, lines = lines_of(lambda: run(training(pool, bundle, nodes=2, deferrable=False)))
    assert {line.strip() for line in lines if "VERSION" in line} == {f"[rank {n}] VERSION first 255 0" for n in (0, 1)}


def test_a_job_has_the_code(pool: EksGpuPool, bundle: Path, core: client.CoreV1Api) -> None:
    limits = {"nvidia.com/gpu": 1}
    container = {"name": "train", "image": "python:3.12", "resources": {"limits": limits}}
    spec = {"restartPolicy": "Never", "containers": [container | {"command": ["python", "train.py"]}]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"backoffLimit": 0, "template": {"spec": spec}}}
    (bundle / "dags" / "own").mkdir()
    (bundle / "dags" / "own" / "train.py").write_text("import os; print('AT', os.getcwd(), os.environ['PYTHONPATH'])")

    def make() -> BaseOperator:
        return GpuWorkloadOperator(task_id="train", gpu_pool=pool, manifest=job, code="own/", deferrable=False)

    _, lines = lines_of(lambda: run(in_dag(bundle, make)))
    assert [line for line in lines if line.endswith("AT /app /app")]


def test_a_failed_training_leaves_no_code(pool: EksGpuPool, bundle: Path, core: client.CoreV1Api) -> None:
    set_version(bundle, "fails")
    with pytest.raises(PodFailed):
        run(training(pool, bundle))


def test_a_task_that_its_triggerer_ends_leaves_no_code(pool: EksGpuPool, bundle: Path, core: client.CoreV1Api) -> None:
    task = training(pool, bundle)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context_of(task))
    assert len(left(core)) == 2
    asyncio.run(copy_of(deferral.value.trigger).on_kill())


def test_scale_down_deletes_the_code_of_a_task_that_died(
    pool: EksGpuPool, bundle: Path, core: client.CoreV1Api
) -> None:
    task = training(pool, bundle)
    with pytest.raises(TaskDeferred):
        task.execute(context_of(task))
    maps = core.list_namespaced_config_map("default", label_selector="airflow-gpu-provider/run").items
    with pytest.raises(ApiException, match="immutable"):
        core.patch_namespaced_config_map(maps[0].metadata.name, "default", {"data": {"f0001": "else"}})
    _, lines = lines_of(lambda: run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool)))
    assert [line for line in lines if "deleted leftover code default/code-" in line]


def test_too_much_code_is_refused_before_anything_is_written(
    pool: EksGpuPool, bundle: Path, core: client.CoreV1Api
) -> None:
    (bundle / "data.csv").write_bytes(os.urandom(2**21))
    with pytest.raises(CodeUnusable, match=r"File data\.csv of the code takes 2731 KiB of a ConfigMap"):
        run(training(pool, bundle))
    assert left(core) == []
