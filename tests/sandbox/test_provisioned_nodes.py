"""Provisioners' nodes under a run: one with a broken GPU, one that is taken away, one that is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kubernetes import client, config

from airflow_gpu_provider import GpuPodOperator, KubernetesGpuPool, ScaleDownSensor
from airflow_gpu_provider.cluster.model.gpu_evidence import label_for
from airflow_gpu_provider.errors import BadGpu, PodPreempted, PoolNotReleased
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.karpenter_objects import install_karpenter, node_pool, uninstall_karpenter
from tests.sandbox.provisioner import Provisioner
from tests.sandbox.running import eventually, run
from tests.sandbox.test_provisioners import AUTOPILOT, KARPENTER

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture(autouse=True)
def here(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Airflow's default Kubernetes connection leads to a cluster with Karpenter, and triggers send at once."""
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)
    install_karpenter(gpu_sandbox)
    yield
    uninstall_karpenter(gpu_sandbox)


@pytest.fixture
def core(gpu_sandbox: Sandbox) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(gpu_sandbox.kubeconfig)))


def brings(sandbox: Sandbox, **spec: Any) -> None:
    node_pool(sandbox, KARPENTER.node_pool, group="karpenter.k8s.aws", spec=spec)


def provisioner(sandbox: Sandbox, **changes: Any) -> Provisioner:
    return Provisioner(sandbox, replace(KARPENTER, brings_plugin=True), **changes)


def a_pool(name: str) -> KubernetesGpuPool:
    return KubernetesGpuPool(
        name=name,
        provisioner="karpenter",
        node_selector_labels=dict(KARPENTER.labels),
        gpus_per_node=1,
        max_runtime=timedelta(hours=1),
    )


def pod(pool: KubernetesGpuPool, *command: str, **changes: Any) -> GpuPodOperator:
    return GpuPodOperator(task_id="train", gpu_pool=pool, gpus=1, image="busybox:1.36", cmds=[*command], **changes)


def test_karpenter_brings_another_node_for_a_pod_that_avoids_a_broken_one(
    gpu_sandbox: Sandbox, core: client.CoreV1Api
) -> None:
    brings(gpu_sandbox)
    pool = a_pool("train-frail")
    with provisioner(gpu_sandbox, keep_seconds=3600) as there:
        with pytest.raises(BadGpu):
            run(pod(pool, "sh", "-c", f"echo '{ECC}'; exit 1"))
        (broken,) = there.nodes
        assert core.read_node(broken).metadata.labels[label_for("tests/nightly")].startswith("boot-")
        run(pod(pool, "true", on_finish_action="keep_pod"), try_number=2)
        (kept,) = core.list_namespaced_pod("default").items
        assert kept.spec.node_name in there.nodes
        assert kept.spec.node_name != broken
        core.delete_namespaced_pod(kept.metadata.name, "default", grace_period_seconds=0)


def test_autopilot_admits_the_next_try_though_it_may_meet_the_broken_gpu_again(gpu_sandbox: Sandbox) -> None:
    pool = replace(a_pool("train-ap"), provisioner="autopilot", node_selector_labels=dict(AUTOPILOT.labels))
    with Provisioner(gpu_sandbox, AUTOPILOT, keep_seconds=3600):
        with pytest.raises(BadGpu):
            run(pod(pool, "sh", "-c", f"echo '{ECC}'; exit 1"))
        assert run(pod(pool, "true"), try_number=2) is None


def test_a_pod_that_karpenter_takes_away_says_why(gpu_sandbox: Sandbox, core: client.CoreV1Api) -> None:
    brings(gpu_sandbox)
    task = pod(a_pool("train-taken"), "sleep", "600", on_preemption="fail", termination_grace_period=1)
    with provisioner(gpu_sandbox) as there:

        def expire() -> None:
            eventually(
                lambda: any(each.status.phase == "Running" for each in core.list_namespaced_pod("default").items)
            )
            (name,) = there.nodes
            there.expire(name)

        thread = threading.Thread(target=expire)
        thread.start()
        with pytest.raises(PodPreempted, match="Karpenter deletes it for the terminationGracePeriod of its node"):
            run(task)
        thread.join()


def test_scale_down_says_why_karpenter_keeps_a_node_and_how_it_goes(gpu_sandbox: Sandbox) -> None:
    brings(gpu_sandbox, disruption={"consolidateAfter": "Never"})
    pool = a_pool("train-never")
    with provisioner(gpu_sandbox) as there:
        run(pod(pool, "true"))
        (name,) = there.nodes
        zero = ScaleDownSensor(task_id="zero", gpu_pool=pool, timeout=3, deferrable=False, poke_interval=0.5)
        with pytest.raises(PoolNotReleased, match="NodePool gpu has consolidateAfter: Never") as error:
            run(zero)
        assert f"kubectl delete nodeclaim {name}." in str(error.value)
