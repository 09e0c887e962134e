"""What is there of a pool, in the cluster and in the cloud: each DAG has its own, as all runs go on at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.harness import Airflow

LEASES = "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
POOL_LABEL = "airflow-gpu-provider/pool"


def items(airflow: Airflow, path: str) -> list[dict[str, Any]]:
    status, reply = airflow.sandbox.control_plane.request("GET", path)
    assert status in (200, 404), reply
    return list(reply.get("items", []))


def demand(airflow: Airflow, pool: str) -> list[dict[str, Any]]:
    """The pool's demand Leases."""
    leases = (lease["metadata"] for lease in items(airflow, LEASES))
    named = [lease for lease in leases if lease["name"].startswith("demand-")]
    return [lease for lease in named if lease["labels"][POOL_LABEL] == pool]


def nodes_of(airflow: Airflow, pool: str) -> list[str]:
    nodes = [node["metadata"] for node in items(airflow, "/api/v1/nodes")]
    return [node["name"] for node in nodes if node.get("labels", {}).get(POOL_LABEL) == pool]


def pods_of(airflow: Airflow, pool: str) -> list[dict[str, Any]]:
    """Those in "default" on the pool's nodes, or that wait for one."""
    pods = items(airflow, "/api/v1/namespaces/default/pods")
    return [pod for pod in pods if pod["spec"].get("nodeSelector", {}).get(POOL_LABEL) == pool]


def left_of(airflow: Airflow, pool: str) -> list[str]:
    """What there is of a pool that costs money, or would bring it up again."""
    groups = [group for group in airflow.sandbox.cluster.groups() if str(group["nodegroup"]).startswith(pool)]
    live = [pod for pod in pods_of(airflow, pool) if pod["status"]["phase"] in ("Pending", "Running")]
    return [
        *(f"node {node}" for node in nodes_of(airflow, pool)),
        *(f"pod {pod['metadata']['name']}" for pod in live),
        *(f"{group['name']} at {group['desired']}" for group in groups if group["desired"] or group["instances"]),
        *(f"lease {lease['name']}" for lease in demand(airflow, pool)),
    ]


def zero(airflow: Airflow, pool: str) -> None:
    """Wait until nothing is left of a pool; on a busy machine a triggerer takes its time."""
    wait_until(lambda: not left_of(airflow, pool), what=f"pool {pool} to be at zero")


def end(airflow: Airflow, runs: Iterable[RunStatus]) -> None:
    """End these runs as `Airflow.end` does, and wait until their pools, which have their DAGs' names, are at zero."""
    runs = tuple(runs)
    airflow.end(runs)
    for run in runs:
        zero(airflow, run.dag_id.replace("_", "-"))
