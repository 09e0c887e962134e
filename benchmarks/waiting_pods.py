"""What waiting costs: deferred GpuPodOperators against deferred KubernetesPodOperators, on one sandbox's API server.

Pods that no node can take are created, a trigger of either kind waits for each, in one event loop as in a triggerer,
and after a moment the API server's own metrics and this process's CPU time say what a minute of that costs.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger
from kubernetes import client, config

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.pools.base import POOL_LABEL
from airflow_gpu_provider.sandbox import Sandbox
from airflow_gpu_provider.triggers.pod import RECORD_VERSION, GpuPodTrigger
from airflow_gpu_provider.triggers.pod_wait import PodWait
from benchmarks.figure import Figure

COUNTS = (1, 10, 100)
SETTLE_SECONDS = 10.0
MEASURE_SECONDS = 30.0
POOL = EksGpuPool(name="bench", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)

Make = Callable[[Any], Any]


def measure() -> list[Figure]:
    """Return requests and CPU time a minute for 1, 10 and 100 pending pods."""
    with Sandbox() as sandbox:
        os.environ.update(sandbox.env())
        api = client.CoreV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
        figures: list[Figure] = []
        for count in COUNTS:
            pods = [_create(api, number) for number in range(count)]
            ours = asyncio.run(_cost(api, pods, _our_trigger))
            peer = asyncio.run(_cost(api, pods, _peer_trigger))
            for pod in pods:
                api.delete_namespaced_pod(pod.metadata.name, "default", grace_period_seconds=0)
            waiting = f"{count} pending pods" if count > 1 else "1 pending pod"
            figures.append(_figure(f"API requests a minute, {waiting}", "requests/min", ours[0], peer[0]))
            figures.append(_figure(f"CPU of the triggerer a minute, {waiting}", "CPU s/min", ours[1], peer[1]))
        return figures


def _figure(name: str, unit: str, ours: float, peer: float) -> Figure:
    return Figure(name=f"{name}; peer: KubernetesPodOperator", unit=unit, ours=ours, peer=peer, n=1)


async def _cost(api: client.CoreV1Api, pods: Sequence[Any], make: Make) -> tuple[float, float]:
    """Return requests and CPU seconds a minute while a trigger waits for each of `pods`."""
    waits = [asyncio.create_task(_first_event(make(pod))) for pod in pods]
    await asyncio.sleep(SETTLE_SECONDS)
    requests, cpu, at = await asyncio.to_thread(_requests, api), time.process_time(), time.monotonic()
    await asyncio.sleep(MEASURE_SECONDS)
    cpu, minutes = time.process_time() - cpu, (time.monotonic() - at) / 60
    requests = await asyncio.to_thread(_requests, api) - requests
    ended = [wait for wait in waits if wait.done()]
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    if ended:
        raise RuntimeError(f"{len(ended)} waits ended by themselves; the first: {ended[0]}")
    return requests / minutes, cpu / minutes


async def _first_event(trigger: Any) -> Any:
    async for event in trigger.run():
        return event


def _requests(api: client.CoreV1Api) -> int:
    """Count the API server's requests for pods, events, nodes and leases so far."""
    pool, host = api.api_client.rest_client.pool_manager, api.api_client.configuration.host
    text = pool.request("GET", f"{host}/metrics").data.decode()
    rows = re.findall(
        r'^apiserver_request_total\{.*resource="(?:pods|events|nodes)".*verb="(\w+)".*\} (\S+)$', text, re.M
    )
    return int(sum(float(count) for verb, count in rows if verb in ("GET", "LIST", "WATCH")))


def _create(api: client.CoreV1Api, number: int) -> Any:
    limits = {"nvidia.com/gpu": "1"}
    container = client.V1Container(
        name="base", image="busybox:1.36", resources=client.V1ResourceRequirements(limits=limits)
    )
    spec = client.V1PodSpec(containers=[container], node_selector={POOL_LABEL: "nowhere"}, restart_policy="Never")
    meta = client.V1ObjectMeta(name=f"bench-{number}", labels={POOL_LABEL: POOL.name})
    return api.create_namespaced_pod("default", client.V1Pod(metadata=meta, spec=spec))


def _our_trigger(pod: Any) -> Any:
    now = datetime.now(UTC)
    wait = PodWait(
        namespace="default",
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        base_container="base",
        started=now,
        schedule_seconds=3600,
        start_seconds=3600,
        deadline=now + timedelta(hours=1),
    )
    return GpuPodTrigger(
        {
            "version": RECORD_VERSION,
            "pool": POOL.serialize(),
            "wait": wait.to_record(),
            "owner": "bench",
            "deferred_at": time.time(),
            "delete_on_kill": False,
        }
    )


def _peer_trigger(pod: Any) -> Any:
    return KubernetesPodTrigger(
        pod_name=pod.metadata.name,
        pod_namespace="default",
        trigger_start_time=datetime.now(UTC),
        base_container_name="base",
        kubernetes_conn_id="kubernetes_default",
        startup_timeout=3600,
        schedule_timeout=3600,
    )
