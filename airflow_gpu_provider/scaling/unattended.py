"""Nodes that no ScaleDownSensor comes for.

They are those of a pod that no demand covers - its task was cleared alone after the run's scale-down, say - and those
of a run that Airflow ended together with its teardowns, as dagrun_timeout does. Whoever has waited there sees them go.
"""

from __future__ import annotations

import time
from datetime import timedelta

from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.platforms.base import Say
from airflow_gpu_provider.scaling.drive import Narrator
from airflow_gpu_provider.scaling.reconcile import Reconciler
from airflow_gpu_provider.scaling.waits import format_seconds

_EVERY = 2.0


def release_unattended(
    reconciler: Reconciler, key: DemandKey, *, say: Say, within: timedelta = timedelta(minutes=1)
) -> None:
    """Give the demand up, where there is still one, and release what nobody wants as soon as its pods have ended.

    Pods of others, and demand of others, keep their nodes. `within` bounds the wait for pods that are being deleted.

    Raises:
        GpuError: What the cluster or the cloud said; what was not released then goes at the next look at the pool.
    """
    narrator = Narrator(say, started=reconciler.clock.now())
    give_up_at = time.monotonic() + within.total_seconds()
    while True:
        outcome = reconciler.give_up(key)
        ending = [
            f"waits for pod {pod} to end"
            for pod in outcome.snapshot.pods
            if pod.run == key.hash and pod.deleting and pod.holds_node(outcome.snapshot.now)
        ]
        narrator.tell(outcome.snapshot.now, *outcome.said, *ending)
        if not ending and not outcome.decision.release:
            return
        if time.monotonic() > give_up_at:
            say(f"pool {key.pool} is not waited for any longer after {format_seconds(within)}: the next look goes on")
            return
        time.sleep(_EVERY)
