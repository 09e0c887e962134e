"""What an operator refuses when the DAG is parsed: the error names the task, and Airflow shows the DAG file's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TaskGroup

from airflow_gpu_provider import (
    EksGpuPool,
    EnsureGpuPoolOperator,
    GpuPodOperator,
    GpuWorkloadOperator,
    ReapGpuPoolsOperator,
    ScaleDownSensor,
    gpu_nodes,
)
from airflow_gpu_provider.errors import GpuError, PoolSpecError

POOL = EksGpuPool(name="p", cluster_name="c", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2)


def train(**arguments: Any) -> Any:
    return GpuPodOperator(task_id="train", gpu_pool=POOL, **{"image": "train:1", **arguments})


def mapped(**arguments: Any) -> Any:
    partial = GpuPodOperator.partial(task_id="train", gpu_pool=POOL, image="train:1", **arguments)
    return partial.expand(arguments=[["a"]])


@pytest.mark.parametrize(
    ("make", "task_id", "what"),
    [
        (lambda: train(container_resources={"requests": {"memory": "64Gi"}}), "train", "The pod asks for 64.0 GiB"),
        (lambda: train(gpus=2), "train", "gpus=2, but the largest machine of pool p has 1"),
        (lambda: mapped(gpus=2), "train", "gpus=2, but the largest"),
        (lambda: mapped(schedule_timeout_seconds=0), "train", "schedule_timeout_seconds=0"),
        (lambda: train(schedule_timeout_seconds=0), "train", "schedule_timeout_seconds=0"),
        (lambda: train(image=None), "train", "image=None, and no template"),
        (lambda: train(pod_template_file="nosuch.yaml"), "train", "pod_template_file='nosuch.yaml' is no file"),
        (lambda: train(on_gpu_out_of_memory="larger", retries=0), "train", ".*needs another try, and retries is 0"),
        (lambda: mapped(on_gpu_out_of_memory="larger", retries=0), "train", ".*needs another try"),
        (lambda: train(on_gpu_out_of_memory="larger", retries=1), "train", ".*have GPUs of 24 GiB: g6.xlarge"),
        (lambda: train(pool=POOL), "train", "pool= was given a GPU pool"),
        (lambda: EnsureGpuPoolOperator(task_id="e", gpu_pool=POOL, nodes=3), "e", "Pool p: 3 nodes are wanted"),
        (lambda: ScaleDownSensor(task_id="zero", gpu_pool=POOL, soft_fail=True), "zero", "soft_fail=True"),
        (lambda: ReapGpuPoolsOperator(task_id="reap", gpu_pools=[]), "reap", "gpu_pools is empty"),
        (lambda: GpuWorkloadOperator(task_id="w", manifest={"kind": "Pod"}, gpu_pool=POOL), "w", "The manifest has"),
    ],
)
def test_it_names_the_task_and_its_dag(make: Callable[[], Any], task_id: str, what: str) -> None:
    with DAG("nightly", schedule=None), TaskGroup("g"), pytest.raises(GpuError) as refused:
        make()
    full = f"g.{task_id}"
    assert refused.match(f"^Task {full} of DAG nightly: {what}")
    assert refused.value.details["task"] == full


def test_a_task_without_a_dag_is_named_alone() -> None:
    with pytest.raises(PoolSpecError, match=r"^Task train: gpus=2, but"):
        train(gpus=2)


def test_a_block_s_own_task_is_named() -> None:
    refused = pytest.raises(PoolSpecError, match=r"^Task p.ensure of DAG nightly: ")
    with DAG("nightly", schedule=None), refused, gpu_nodes(POOL, nodes=1):
        GpuPodOperator(task_id="train", image="train:1", nodes=2)


def test_a_block_of_a_templated_pool_wants_a_name() -> None:
    templated = EksGpuPool(**{**vars(POOL), "name": "cost-{{ params.team }}"})
    refused = pytest.raises(PoolSpecError, match=r"gpu_nodes: the pool's name .*group_id=")
    with DAG("nightly", schedule=None), refused, gpu_nodes(templated):
        GpuPodOperator(task_id="train", image="train:1")
    with DAG("nightly", schedule=None), gpu_nodes(templated, group_id="gpus"):
        assert GpuPodOperator(task_id="train", image="train:1").gpu_pool is templated


def test_airflow_shows_the_line_of_the_dag_file(tmp_path: Path) -> None:
    """[core] dagbag_import_error_traceback_depth is 2 by default."""
    file = tmp_path / "nights.py"
    file.write_text(
        "from airflow.sdk import DAG\n"
        "from airflow_gpu_provider import EksGpuPool, GpuPodOperator\n"
        "pool = EksGpuPool(name='p', cluster_name='c', region='us-west-2', instance_types=['g6.xlarge'], max_nodes=2)\n"
        "with DAG('nightly', schedule=None):\n"
        "    GpuPodOperator(task_id='train', gpu_pool=pool, image='train:1', gpus=2)\n"
    )
    (shown,) = DagBag(str(tmp_path), safe_mode=False).import_errors.values()
    assert f'File "{file}", line 5' in shown
    assert "Task train of DAG nightly: gpus=2" in shown
