"""waiter: a process that waits for pods as a triggerer does - many triggers in one event loop - and says what it costs.

`python -m benchmarks.waiter ours|peer|gang`: the first line on stdin is a JSON list of pods or gangs (name, uid, pool,
nodes). Each further line asks for a sample: CPU seconds so far, resident memory, how many triggers have ended.
Each event of a trigger is told as it comes. All answers are JSON, a line each.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider import EksGpuPool

_answers = os.fdopen(os.dup(1), "w")

Make = Callable[[dict[str, str]], Any]


def pool(name: str) -> EksGpuPool:
    """Return the spec of a pool that the benchmark's pods wait for."""
    return EksGpuPool(name=name, cluster_name="k8s-ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=1)


def our_trigger(pod: dict[str, str]) -> Any:
    from airflow_gpu_provider.training.wait.pod_wait import PodWait
    from airflow_gpu_provider.triggers.pod import RECORD_VERSION, GpuPodTrigger

    now = datetime.now(UTC)
    wait = PodWait(
        namespace="default",
        name=pod["name"],
        uid=pod["uid"],
        base_container="base",
        started=now,
        schedule_seconds=3600,
        start_seconds=3600,
        deadline=now + timedelta(hours=1),
    )
    return GpuPodTrigger(
        {
            "version": RECORD_VERSION,
            "pool": pool(pod["pool"]).serialize(),
            "kind": wait.run_kind,
            "wait": wait.to_record(),
            "owner": "bench",
            "deferred_at": time.time() - 60,
            "delete_on_kill": False,
        }
    )


def gang_trigger(job: dict[str, str]) -> Any:
    from airflow_gpu_provider.training.wait.gang_wait import GangWait
    from airflow_gpu_provider.triggers.pod import RECORD_VERSION, GpuPodTrigger

    now = datetime.now(UTC)
    wait = GangWait(
        namespace="default",
        name=job["name"],
        uid=job["uid"],
        nodes=int(job["nodes"]),
        base_container="base",
        started=now,
        schedule_seconds=3600,
        start_seconds=3600,
        deadline=now + timedelta(hours=1),
    )
    return GpuPodTrigger(
        {
            "version": RECORD_VERSION,
            "pool": pool(job["pool"]).serialize(),
            "kind": wait.run_kind,
            "wait": wait.to_record(),
            "owner": "bench",
            "deferred_at": time.time() - 60,
            "delete_on_kill": False,
        }
    )


def peer_trigger(pod: dict[str, str]) -> Any:
    from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger

    return KubernetesPodTrigger(
        pod_name=pod["name"],
        pod_namespace="default",
        trigger_start_time=datetime.now(UTC),
        base_container_name="base",
        kubernetes_conn_id="kubernetes_default",
        startup_timeout=3600,
        schedule_timeout=3600,
    )


async def wait_for_all(pods: list[dict[str, str]], make: Make) -> None:
    """Start a trigger for each pod, and answer until stdin is closed."""
    waits = [asyncio.create_task(_first_event(make(pod), pod["name"])) for pod in pods]
    while await asyncio.to_thread(sys.stdin.readline):
        _tell(cpu=time.process_time(), rss=_resident(), ended=sum(wait.done() for wait in waits))
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def _first_event(trigger: Any, name: str) -> None:
    async for event in trigger.run():
        _tell(event=name, at=time.time(), saw_end=event.payload.get("saw_end"))
        break
    await trigger.cleanup()


def _tell(**values: Any) -> None:
    print(json.dumps(values), file=_answers, flush=True)


def _resident() -> float:
    """Return this process's resident memory in MiB."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what triggers log is no answer
    make = {"ours": our_trigger, "peer": peer_trigger, "gang": gang_trigger}[sys.argv[1]]
    asyncio.run(wait_for_all(json.loads(sys.stdin.readline()), make))
