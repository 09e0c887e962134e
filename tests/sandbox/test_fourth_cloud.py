"""A cloud that another package brings: its nights need no edit of this one, and no table of it is patched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes import client, config

from airflow_gpu_provider.clouds import pool_kinds
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.operators.delete import DeleteGpuPoolOperator
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.reap import ReapGpuPoolsOperator
from airflow_gpu_provider.operators.reports import GpuPoolDoctorOperator, GpuPoolStatusOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.nodes import NodeSpec
from gpu_sandbox.sandbox import Sandbox
from tests.fakes import aks
from tests.fakes.aks import AksGpuPool, Azure, Vm, install
from tests.sandbox.running import run
from tests.sandbox.test_same_dag import COMMON, enter, holds, one_night

__all__ = ["enter"]

POOL = AksGpuPool(**{**COMMON, "name": "train-aks", "cluster_name": "ml", "price_per_hour": 1.5})


@pytest.fixture
def azure(
    gpu_sandbox: Sandbox,
    enter: Callable[[Sandbox], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Azure]:
    """The cloud, whose machines join the sandbox's cluster; its package is installed for child processes as well."""
    enter(gpu_sandbox)
    install(tmp_path, "company-aks", "aks = tests.fakes.aks:AksGpuPool")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    pool_kinds._installed.cache_clear()

    def joins(vm: Vm) -> None:
        gpu_sandbox.agent.add_node(
            NodeSpec(name=vm.node, labels=vm.labels, provider_id=f"azure:///vm/{vm.node}", gpus=1)
        )

    azure = Azure(joins=joins, leaves=lambda vm: gpu_sandbox.agent.remove_node(vm.node))
    monkeypatch.setattr(aks, "AZURE", azure)
    yield azure
    for vm in [vm for vm in azure.vms if vm.deleted_at is None]:
        azure.delete(vm.node)
    pool_kinds._installed.cache_clear()


def test_a_night(azure: Azure, gpu_sandbox: Sandbox) -> None:
    plan = EnsureGpuPoolOperator(task_id="plan", gpu_pool=POOL, dry_run=True, deferrable=False)
    assert [line.strip()[:1] for line in run(plan)["plan"]] == ["P", "+", "^"]
    results = one_night(POOL)
    holds(results)
    bill = results["scale_down"]["usage"]
    (vm,) = azure.vms
    assert vm.deleted_at is not None
    ran = (vm.deleted_at - vm.created_at).total_seconds()
    assert sum(bill["node_seconds"].values()) == pytest.approx(ran, abs=2)
    assert bill["cost"]["total"] == pytest.approx(1.5 * ran / 3600, rel=0.1)
    assert [line.strip()[:1] for line in run(plan)["plan"]] == ["P", "^"]
    run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=POOL))
    assert azure.capacity == {}
    core = client.CoreV1Api(config.new_client_from_config(str(gpu_sandbox.kubeconfig)))
    assert not [node for node in core.list_node().items if node.metadata.name == vm.node]


def test_what_people_ask_of_a_pool(azure: Azure) -> None:
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL, nodes=1, keep=True, deferrable=False))
    (status,) = run(GpuPoolStatusOperator(task_id="status", gpu_pools=[POOL]))
    assert (status["pool"], status["nodes"], status["cost_per_hour"]) == ("train-aks", 1, 1.5)
    found = run(GpuPoolDoctorOperator(task_id="doctor", gpu_pools=[POOL]))
    assert not [each for each in found if each["result"] == "problem"]
    assert run(ScaleDownSensor(task_id="scale_down", gpu_pool=POOL))["nodes"] == 0


def test_the_janitor_ends_what_nobody_wants(azure: Azure) -> None:
    pool, scale_set = replace(POOL, name="idle-aks"), "idle-aks-standard-nc4as-t4-v3"
    azure.capacity[scale_set] = 0
    aks.AksPlatform(pool).grow({scale_set: 1})
    run(ReapGpuPoolsOperator(task_id="reap", gpu_pools=[pool]))
    assert azure.running(scale_set) == []


READS = """
import json, sys
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
print(deserialize_pool(json.load(sys.stdin)).kind)
"""


def test_a_child_process_reads_its_specs(azure: Azure) -> None:
    spec = json.dumps(POOL.serialize())
    done = subprocess.run([sys.executable, "-c", READS], input=spec, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "aks"
    assert deserialize_pool(POOL.serialize()) == POOL
