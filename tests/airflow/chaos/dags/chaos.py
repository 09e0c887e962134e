"""The night that the matrix disturbs. Each run has a pool of its own, which its configuration names.

The training says that it has begun, and ends when it is told so (see ../trainings.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_gpu_provider import (
    DeleteGpuPoolOperator,
    EksGpuPool,
    GkeGpuPool,
    GpuPodOperator,
    KubernetesGpuPool,
    ReapGpuPoolsOperator,
    gpu_nodes,
)
from airflow_gpu_provider.pools import GpuPool

TRAINING = """
exec 3<>/dev/tcp/127.0.0.1/{{ dag_run.conf['port'] }} || exit 3
echo "{{ run_id }}" >&3
read -r word <&3
test "$word" = end || exit 4
test -r chaos.py || exit 6  # its own code
echo trained
"""
# Rank 1 of a gang that comes up by halves begins when it is told so.
RANK_1_WAITS = {
    "name": "begins-later",
    "image": "busybox:1.36",
    "command": ["bash", "-c"],
    "args": [
        """
        test "$JOB_COMPLETION_INDEX" = 1 || exit 0
        exec 3<>/dev/tcp/127.0.0.1/{{ dag_run.conf['port'] }} || exit 3
        echo "{{ run_id }} waits" >&3
        read -r word <&3
        """
    ],
}
# A night has two tries, as most have, and no outage lasts for both: Airflow's own retry_delay is 5 minutes.
# Nothing waits for longer than a machine under load needs.
ARGUMENTS = {"retries": 1, "retry_delay": timedelta(seconds=20)}
PATIENCE = timedelta(seconds=75)  # longer than an outage that ends

PROVISIONER = os.environ.get("CHAOS_PROVISIONER")
PLATFORM = os.environ.get("GPU_SANDBOX_PLATFORM", "eks")
OF_BOTH = {
    "name": "{{ dag_run.conf['pool'] }}",
    "cluster_name": os.environ.get("GPU_SANDBOX_CLUSTER", "k8s-ml"),
    "capacity_types": ["{{ dag_run.conf['market'] }}"],
    "max_nodes": 2,
    "max_runtime": timedelta(hours=2),
}


def pool(**fields: Any) -> GpuPool:
    """On the sandbox's cloud, or of the nodes that Karpenter brings there."""
    if PROVISIONER:
        return provisioned_pool(**fields)
    return (gke_pool if PLATFORM == "gke" else eks_pool)(**fields)


def provisioned_pool(**fields: Any) -> KubernetesGpuPool:
    """Its NodePool has its name."""
    selected = {"karpenter.sh/nodepool": OF_BOTH["name"]}
    own = {"provisioner": PROVISIONER, "node_selector_labels": selected, "gpus_per_node": 1}
    same = {key: OF_BOTH[key] for key in ("name", "max_nodes", "max_runtime")}
    return KubernetesGpuPool(**{**same, **own, **fields})


def eks_pool(**fields: Any) -> EksGpuPool:
    defaults: dict[str, Any] = {
        **OF_BOTH,
        "region": os.environ.get("GPU_SANDBOX_REGION", "us-west-2"),
        "instance_types": ["{{ dag_run.conf['instance_type'] }}"],
        "zones": ["{{ dag_run.conf['zone'] }}"],
    }
    return EksGpuPool(**{**defaults, **fields})


def gke_pool(**fields: Any) -> GkeGpuPool:
    defaults: dict[str, Any] = {
        **OF_BOTH,
        "project_id": os.environ["GPU_SANDBOX_PROJECT"],
        "location": os.environ["GPU_SANDBOX_LOCATION"],
        "machine_types": ["{{ dag_run.conf['instance_type'] }}"],
        "node_locations": ["{{ dag_run.conf['zone'] }}"],
    }
    return GkeGpuPool(**{**defaults, **fields})


def night(
    dag_id: str,
    *,
    plugin: bool = False,
    deferrable: bool = True,
    fails: int = 0,
    nodes: int = 1,
    max_cost: str | None = None,
    prefetch: Sequence[str] = (),
    training: dict[str, Any] | None = None,
    ensure: dict[str, Any] | None = None,
    scale_down: dict[str, Any] | None = None,
    **fields: Any,
) -> DAG:
    """A night; without `plugin`, the cluster brings the device plugin (see ../world.py), as GKE always does.

    fails: so many of the training's first tries fail.
    nodes: what the training runs on.
    max_cost: what the block may cost.
    prefetch: images that nodes pull as they join.
    training, ensure, scale_down: more arguments of these tasks.
    """
    if not plugin and PLATFORM == "eks" and not PROVISIONER:
        fields["node_labels"] = {"example.com/device-plugin": "there"}
    with (
        DAG(
            dag_id,
            schedule=None,
            start_date=datetime(2026, 1, 1),
            max_active_runs=64,
            max_active_tasks=64,
            dagrun_timeout=timedelta(days=1),
            default_args=ARGUMENTS,
        ) as dag,
        gpu_nodes(
            pool(**fields),
            nodes=nodes,
            max_cost=max_cost,
            prefetch=prefetch,
            group_id="gpus",
            install_device_plugin=plugin,
            ensure_args={"timeout": PATIENCE, **(ensure or {})},
            device_plugin_args={"timeout": PATIENCE},
            scale_down_args={"retry_delay": timedelta(seconds=5), **(scale_down or {})},
        ),
    ):
        GpuPodOperator(
            task_id="train",
            image="busybox:1.36",
            code="bundle",
            cmds=["bash", "-c", f"test {{{{ ti.try_number }}}} -gt {fails} || exit 5\n{TRAINING}"],
            deferrable=deferrable,
            on_preemption="resume",
            schedule_timeout_seconds=60,
            termination_grace_period=1,
            retries=1 + fails,
            nodes=nodes,
            **(training or {}),
        )
    return dag


deferred = night("chaos_deferred")
blocking = night("chaos_blocking", deferrable=False)
with_plugin = night("chaos_plugin", plugin=True)
retried = night("chaos_retried", fails=1)
gang = night("chaos_gang", nodes=2)
gang_blocking = night("chaos_gang_blocking", nodes=2, deferrable=False)
gang_half_up = night(
    "chaos_gang_half_up",
    nodes=2,
    training={"pod_template_dict": {"spec": {"initContainers": [RANK_1_WAITS], "containers": [{"name": "base"}]}}},
)
if PLATFORM == "eks" and not PROVISIONER:
    on_budget = night(
        "chaos_budget", deferrable=False, max_cost="{{ dag_run.conf['max_cost'] }}", price_per_hour="list"
    )
    no_gpus = night(
        "chaos_no_gpus",
        plugin=True,  # which comes after Ensure
        ensure={"wait_for": "gpus", "deferrable": False},
        scale_down={"timeout": timedelta(seconds=60)},
        aws_conn_id="{{ dag_run.conf['connection'] }}",
    )
    efa = night("chaos_efa", network="efa", prefetch=["busybox:1.36"])
    on_block = night(
        "chaos_block",
        capacity_types=["RESERVED", "ON_DEMAND"],
        reservations=["{{ dag_run.conf['reservation'] }}"],
        prefetch=["busybox:1.36"],
    )
    with DAG("chaos_delete", schedule=None, start_date=datetime(2026, 1, 1), max_active_runs=64):
        DeleteGpuPoolOperator(task_id="delete", gpu_pool=pool(), retries=2, retry_delay=timedelta(seconds=5))
# What goes on beside the matrix, for hours, while the cloud's deadlines come far sooner than the clock says.
bystander = night("chaos_bystander", max_runtime=timedelta(days=30))

# One pool at a time, so that each cell is cleared up for itself.
with DAG("chaos_janitor", schedule=None, start_date=datetime(2026, 1, 1), max_active_runs=64):
    ReapGpuPoolsOperator(task_id="reap", gpu_pools=[pool()], others=False, retries=2, retry_delay=timedelta(seconds=5))
