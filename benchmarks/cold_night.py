"""How soon a training of a cold night prints, with a large image: with fast start and prefetch, and without.

A sandbox goes at the clouds' own times, so many times as fast; the figures are in its time. Both nights begin with a
group that is there at size 0, as each night but the first does, and end with no machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_gpu_provider import EksGpuPool, GpuPodOperator
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.testing import Tasks
from benchmarks.figure import Figure
from gpu_sandbox import Sandbox
from gpu_sandbox.nodes import Image

SPEED = 6.0
_IMAGE = Image(pattern="large:*", size=12 * 2**30)
_PRINTS = ["sh", "-c", "date +%s.%N > /airflow/xcom/return.json"]


def measure() -> list[Figure]:
    """Return the seconds from ask to the training's first line."""
    with Sandbox(progress=print, autoscaler="none", pace="real", speed=SPEED, images=[_IMAGE]) as sandbox:
        os.environ.update(sandbox.env())
        os.environ.setdefault("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "bench")
        plain = EksGpuPool(
            name="plain",
            cluster_name=sandbox.cluster_name,
            region=sandbox.region,
            instance_types=["g6.4xlarge"],
            zones=[sandbox.zones[0]],
            max_nodes=1,
        )
        fast = replace(plain, name="fast", fast_start=True)
        ours = _seconds(fast, {"prefetch": ["large:1"]})
        theirs = _seconds(plain, {})
    what = "from ask to the first line, a cold night with an image of 12 GiB on g6.4xlarge"
    return [Figure(name=f"{what}; peer: without fast start and prefetch", unit="s", ours=ours, peer=theirs, n=1)]


def _seconds(pool: EksGpuPool, how: Mapping[str, Any]) -> float:
    _make_groups(pool)
    tasks, began = Tasks(f"cold-{pool.name}"), time.time()
    tasks.run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, **how))
    tasks.run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool))
    training = GpuPodOperator(
        task_id="train", gpu_pool=pool, image="large:1", cmds=_PRINTS, do_xcom_push=True, get_logs=False
    )
    printed: Any = tasks.run(training).result
    tasks.run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
    return (float(printed) - began) * SPEED


def _make_groups(pool: EksGpuPool) -> None:
    platform = open_pool(pool, owner="bench", holder="bench", report=print).platform
    platform.apply(platform.plan(0), print)
    while not (groups := platform.observe()) or any(group.status == "creating" for group in groups):
        time.sleep(1)
