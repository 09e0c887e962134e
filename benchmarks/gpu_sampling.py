"""What it costs a training that its GPUs are sampled: pairs of equal runs, one of them asked every second.

A task asks once a minute: here it is sixty times as often, so that it would show. The work is one busy core's, on a
node of the sandbox, whose nvidia-smi is a process as the real one is.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from kubernetes import client

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.cluster.api.informer import connected
from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.training.wait.gpu_use import GpuWatching
from airflow_gpu_provider.training.wait.pod_wait import PodWait
from airflow_gpu_provider.training.watch import gpu_sampler
from airflow_gpu_provider.training.watch.watch_loop import cluster_access
from benchmarks.figure import Figure
from gpu_sandbox import Sandbox
from gpu_sandbox.nodes import NodeSpec

NODE = "sampled"
PAIRS = 10
_EVERY = 1.0
_WITHIN = 300.0
_POOL = KubernetesGpuPool(name=NODE, nodes=(NODE,), gpus_per_node=1)
_WORK = """
began=$(date +%s%N); i=0
while [ $i -lt 6000000 ]; do i=$((i+1)); done
echo $(($(date +%s%N) - began))
"""


def measure(sandbox: Sandbox, api: client.CoreV1Api) -> list[Figure]:
    """Return the run's seconds with and without samples, and what the pairs differ by beside how much they vary."""
    sandbox.agent.add_node(NodeSpec(name=NODE, gpus=1, device_plugin_builtin=True))
    runs: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(PAIRS):
        for is_sampled in (pair % 2 == 0, pair % 2 == 1):  # what comes first changes with each pair
            runs[is_sampled].append(asyncio.run(_run(api, f"sampled-{pair}-{is_sampled}".lower(), is_sampled)))
    differences = [sampled - alone for sampled, alone in zip(runs[True], runs[False], strict=True)]
    what = f"a training whose GPUs are sampled every {_EVERY:.0f} s"
    return [
        Figure(
            name=f"run time, {what}; peer: the same, not sampled",
            unit="s",
            ours=statistics.median(runs[True]),
            peer=statistics.median(runs[False]),
            n=PAIRS,
        ),
        Figure(
            name=f"mean difference of the pairs, {what}; peer: their standard deviation",
            unit="s",
            ours=statistics.mean(differences),
            peer=statistics.stdev(differences),
            n=PAIRS,
        ),
    ]


async def _run(api: client.CoreV1Api, name: str, is_sampled: bool) -> float:
    """Return the seconds that the work took, by its own clock."""
    await asyncio.to_thread(api.create_namespaced_pod, "default", _pod(name))
    async with connected(_POOL.cluster_identity, lambda: cluster_access(_POOL)) as asynchronous:
        sampler = gpu_sampler.GpuSampler(asynchronous, _wait(name), report=print, warn=print)
        gpu_sampler.SAMPLE_EVERY = _EVERY
        async with sampler:
            async for raw in _until_it_has_ended(api, name):
                if is_sampled:
                    sampler.follow(PodState.parse(raw, "base"), raw)
    if is_sampled and not sampler.use.samples:
        raise RuntimeError(f"pod {name} was not sampled")
    log = await asyncio.to_thread(api.read_namespaced_pod_log, name, "default")
    await asyncio.to_thread(api.delete_namespaced_pod, name, "default", grace_period_seconds=0)
    return int(log) / 1e9


async def _until_it_has_ended(api: client.CoreV1Api, name: str) -> Any:
    give_up_at = time.monotonic() + _WITHIN
    for _ in itertools.count():
        pod = await asyncio.to_thread(api.read_namespaced_pod, name, "default")
        yield api.api_client.sanitize_for_serialization(pod)
        if pod.status.phase in ("Succeeded", "Failed"):
            return
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"pod {name} has not ended after {_WITHIN:.0f} s: it is {pod.status.phase}")
        await asyncio.sleep(0.5)


def _pod(name: str) -> dict[str, Any]:
    container = {
        "name": "base",
        "image": "busybox:1.36",
        "command": ["sh", "-c", _WORK],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container]}}


def _wait(name: str) -> PodWait:
    now = datetime.now(UTC)
    return PodWait(
        namespace="default",
        name=name,
        uid="",
        base_container="base",
        started=now,
        schedule_seconds=_WITHIN,
        start_seconds=_WITHIN,
        deadline=now + timedelta(seconds=_WITHIN),
        gpus=GpuWatching(),
    )
