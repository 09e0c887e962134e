"""What a training's GPUs did, asked of nvidia-smi in its container, by real pods and their kubelet's exec."""

from __future__ import annotations

import os
from itertools import groupby
from typing import Any

import pytest
from kubernetes import client, config

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.cluster.model.pool_pod import HangNote
from airflow_gpu_provider.errors import GangHung, GpuHung, GpuIdle
from airflow_gpu_provider.ledger.usage import read_runs
from airflow_gpu_provider.money.bill import computed_share
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.pools import GpuPool
from gpu_sandbox.faults import GpuUse
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.running import context_of, eventually, run, watched
from tests.sandbox.ways import BLOCKING_BY_DAY, DEFERRED_BY_DAY

OWN = {"PATH": "/tmp/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""In which a training's own nvidia-smi comes first."""
SAMPLED_EVERY = 0.5


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.training.watch.gpu_sampler.SAMPLE_EVERY", SAMPLED_EVERY)
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with one node of four GPUs."""
    return with_nodes(eks_pool(gpu_sandbox, "use", instance_types=["g6.12xlarge"]))


def train(pool: GpuPool, script: str, **arguments: Any) -> tuple[GpuPodOperator, dict[str, Any]]:
    operator = GpuPodOperator(
        task_id="train", gpu_pool=pool, image="busybox:1.36", cmds=["sh", "-c", script], env_vars=OWN, **arguments
    )
    return operator, context_of(operator)


def playing(line: str, *, asked: int) -> str:
    """A training that ends when its nvidia-smi was asked so often; `$n` is how often it was asked before."""
    count = "n=$(cat /tmp/n); echo $((n+1)) > /tmp/n.next; mv /tmp/n.next /tmp/n"  # never half written
    smi = f'{count}; echo "$@" >> /tmp/asked; echo "{line}"'
    make = f"mkdir -p /tmp/bin; cat > /tmp/bin/nvidia-smi <<'EOF'\n#!/bin/sh\n{smi}\nEOF\nchmod +x /tmp/bin/nvidia-smi"
    return f"echo 0 > /tmp/n; {make}\nwhile [ $(cat /tmp/n) -lt {asked} ]; do sleep 0.1; done; sleep 1"


@DEFERRED_BY_DAY
def test_use_that_varies(pool: EksGpuPool, deferrable: bool) -> None:
    """Samples of 10, 30, 50, 70, 10, ... percent are 40 on average; with 40 of them, within 2 points."""
    script = playing("$(( n % 4 * 20 + 10 )), $(( n * 100 )), [N/A], [N/A]", asked=40)
    operator, context = train(pool, script, deferrable=deferrable)
    run(operator, context)
    told = context["ti"].xcoms["utilization"]
    assert told["samples"] >= 38
    assert told["mean"] == pytest.approx(40, abs=2)
    assert told["computed_fraction"] == pytest.approx(0.4, abs=0.02)
    assert told["max"] == 70
    assert told["memory_mib_max"] >= 3700
    assert told["power_w_mean"] is None
    api = config.new_client_from_config(os.environ["KUBECONFIG"])
    (usage,) = (usage for usage in read_runs(api, pool.name) if usage.computed)
    found = computed_share(usage)
    assert found is not None
    assert found.share == pytest.approx(0.4, abs=0.02)
    started, ended = max((pod.span for pod in usage.computed.values()), key=lambda span: span[1])
    assert (ended - started).total_seconds() == pytest.approx(told["samples"] * SAMPLED_EVERY, abs=1)


def test_gpus_that_do_not_compute_end_the_pod_when_asked(pool: EksGpuPool) -> None:
    operator, context = train(pool, "sleep 3600", idle_gpu_timeout=1.5, on_finish_action="keep_pod")
    with pytest.raises(GpuIdle, match="have been idle for"):
        run(operator, context)
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    name = context["ti"].xcoms["pod_name"]
    eventually(lambda: name not in {pod.metadata.name for pod in core.list_namespaced_pod("default").items})
    assert context["ti"].xcoms["utilization"]["mean"] == 0


@pytest.mark.nightly
@pytest.mark.parametrize("deferrable", [True, False])
def test_gpus_that_do_not_compute_end_the_pod_on_gke(
    gke_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """In an image without NVIDIA's variables: GKE mounts its programs where PATH does not look."""
    for name, value in {**gke_sandbox.env(), "AIRFLOW__GPU_PROVIDER__INSTALLATION_ID": "tests"}.items():
        monkeypatch.setenv(name, value)
    pool = GkeGpuPool(
        name="use",
        project_id=gke_sandbox.google.project_id,
        location=gke_sandbox.google.location,
        cluster_name=gke_sandbox.cluster_name,
        machine_types=["g2-standard-4"],
        node_locations=[gke_sandbox.zones[0]],
        max_nodes=1,
    )
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, deferrable=False))
    operator, context = train(pool, "sleep 3600", idle_gpu_timeout=1.5, deferrable=deferrable)
    with pytest.raises(GpuIdle, match="have been idle for"):
        run(operator, context)
    assert context["ti"].xcoms["utilization"]["mean"] == 0


SPINS = playing("100, 1000, $(( 60 + n % 2 * 6 )), 400", asked=0) + "; while :; do echo waits for all; sleep 0.2; done"
"""A training that prints on while its GPUs are busy at the draw of idle ones."""


@pytest.mark.parametrize("deferrable", [True, False])
def test_pod_that_hangs_by_the_draw_of_its_gpus_is_ended(
    pool: EksGpuPool, gpu_sandbox: Sandbox, deferrable: bool
) -> None:
    """By the sandbox's own nvidia-smi."""
    script = "while :; do echo waits for all; sleep 0.2; done"
    operator, context = train(pool, script, deferrable=deferrable, hang_timeout=3, on_finish_action="keep_pod")
    gpu_sandbox.faults.show(GpuUse(utilization=100, power=17, pod="train-*"))
    try:
        with pytest.raises(
            GpuHung, match=r"busy for .* at a draw near that of idle ones \(17 W of 72 W each\)"
        ) as error:
            run(operator, context)
    finally:
        gpu_sandbox.faults.clear()
    (gpu,) = error.value.details["gpus"]
    assert (gpu["percent"], gpu["power_w"]) == (100, 17)
    assert error.value.details["last_lines"][-1] == "waits for all"
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    name = context["ti"].xcoms["pod_name"]
    eventually(lambda: name not in {pod.metadata.name for pod in core.list_namespaced_pod("default").items})
    (told,) = context["ti"].xcoms["utilization"]["gpus"]
    assert told["mean"] == 100
    assert told["power_limit_w"] == 72


def test_pod_that_may_hang_is_marked_until_its_gpus_compute(pool: EksGpuPool) -> None:
    """Nothing ends it; the page and `airflow gpu status` read the mark."""
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    before = core.list_namespaced_pod("default").metadata.resource_version
    operator, context = train(pool, playing("100, 1000, $(( n < 12 ? 60 : 390 )), 400", asked=16), idle_gpu_warning=1)
    run(operator, context)
    name = context["ti"].xcoms["pod_name"]
    life = watched(
        core.list_namespaced_pod,
        before,
        lambda what, pod: what == "DELETED" and pod.metadata.name == name,
        namespace="default",
    )
    notes = [HangNote.of(pod.metadata.annotations or {}) for pod in life if pod.metadata.name == name]
    assert [bool(note) for note, _ in groupby(notes)] == [False, True, False]
    assert {(note.pods, note.shown_by) for note in notes if note} == {
        (1, "busy at a draw near that of idle ones (60 W of 400 W each)")
    }


@pytest.mark.parametrize("deferrable", [True, False])
def test_pod_that_prints_nothing_is_ended_where_that_is_wanted(pool: EksGpuPool, deferrable: bool) -> None:
    """Its GPUs compute, as in a program that never comes to its next step."""
    script = playing("90, 1000, 300, 400", asked=0) + "; echo step 7; sleep 3600"
    operator, context = train(pool, script, deferrable=deferrable, hang_timeout=5)
    with pytest.raises(GpuHung, match=r"has printed nothing for \d+ s") as error:
        run(operator, context)
    assert error.value.details["last_lines"] == ["step 7"]


def test_container_without_nvidia_smi_is_asked_once(pool: EksGpuPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.training.watch.gpu_sampler._UNTIL_THE_END_SHOWS", 0.5)
    monkeypatch.setattr("airflow_gpu_provider.training.watch.gpu_sampler._WITHIN", 60.0)
    fails = playing("NVIDIA-SMI has failed", asked=1) + "; sleep 4; [ $(cat /tmp/n) = 1 ]"
    operator, context = train(pool, fails)
    run(operator, context)
    assert "utilization" not in context["ti"].xcoms


def test_nothing_is_asked_where_that_is_turned_off(pool: EksGpuPool) -> None:
    untouched = playing("90, 1, 1, 72", asked=0) + "; sleep 3; [ $(cat /tmp/n) = 0 ]"
    operator, context = train(pool, untouched, utilization=False)
    run(operator, context)
    assert "utilization" not in context["ti"].xcoms


@pytest.fixture(scope="module")
def two(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with two nodes of one GPU each."""
    return with_nodes(eks_pool(gpu_sandbox, "use-of-two", max_nodes=2), nodes=2)


@BLOCKING_BY_DAY
def test_ranks_are_asked_in_turn(two: EksGpuPool, deferrable: bool) -> None:
    script = playing("$(( AIRFLOW_GPU_NODE_RANK * 40 + 20 )), 1000, 70, 72", asked=10)
    operator, context = train(two, script, nodes=2, deferrable=deferrable)
    run(operator, context)
    told = context["ti"].xcoms["utilization"]
    assert told["samples"] >= 20
    assert told["mean"] == pytest.approx(40, abs=5), "each in its turn, until one of them has ended"
    assert told["max"] == 60
    api = config.new_client_from_config(os.environ["KUBECONFIG"])
    said = [each for usage in read_runs(api, two.name) for each in usage.computed.values()]
    assert len({each.node for each in said}) == 2, "what they say stands for the machines of both"


def test_gang_that_does_not_compute_ends_when_asked(two: EksGpuPool) -> None:
    operator, context = train(two, "sleep 3600", nodes=2, idle_gpu_timeout=1.5, on_finish_action="keep_pod")
    with pytest.raises(GpuIdle, match=r"The GPUs of Job train-.* have been idle for"):
        run(operator, context)
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    ranks = f"batch.kubernetes.io/job-name={context['ti'].xcoms['job_name']}"
    phases = lambda: {pod.status.phase for pod in core.list_namespaced_pod("default", label_selector=ranks).items}  # noqa: E731
    eventually(lambda: phases() <= {"Succeeded", "Failed"})


def test_gang_that_hangs_by_the_draw_of_all_its_gpus_is_ended(two: EksGpuPool) -> None:
    operator, context = train(two, SPINS, nodes=2, hang_timeout=3)
    with pytest.raises(GangHung, match=r"The GPUs of Job train-.* have been busy for .* as in a hang") as error:
        run(operator, context)
    assert {gpu["rank"] for gpu in error.value.details["gpus"]} == {0, 1}
    assert error.value.details["last_lines"] == {"0": "waits for all", "1": "waits for all"}
    assert [each["rank"] for each in context["ti"].xcoms["utilization"]["gpus"]] == [0, 1]


def test_workload_s_pods_are_asked_too(two: EksGpuPool) -> None:
    container = {
        "name": "train",
        "image": "busybox:1.36",
        "command": ["sh", "-c", playing("35, 1000, 70, 72", asked=6)],
        "env": [{"name": name, "value": value} for name, value in OWN.items()],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"backoffLimit": 0, "template": template}}
    operator = GpuWorkloadOperator(task_id="train", gpu_pool=two, manifest=job)
    context = context_of(operator)
    run(operator, context)
    assert context["ti"].xcoms["utilization"]["mean"] == pytest.approx(35)
