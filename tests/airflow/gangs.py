"""What there is of the gang of a run, whose DAG has a pool of its own."""

from __future__ import annotations

from typing import Any

from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.harness import Airflow
from tests.airflow.pools import items


def objects(airflow: Airflow, run: RunStatus, path: str) -> list[dict[str, Any]]:
    pool = run.dag_id.replace("_", "-")
    found = items(airflow, path)
    return [each for each in found if (each["metadata"].get("labels") or {}).get("airflow-gpu-provider/pool") == pool]


def jobs(airflow: Airflow, run: RunStatus) -> list[dict[str, Any]]:
    return objects(airflow, run, "/apis/batch/v1/namespaces/default/jobs")


def pod_of(airflow: Airflow, run: RunStatus, *, rank: int) -> str:
    """The name of the rank's pod."""
    pods = objects(airflow, run, "/api/v1/namespaces/default/pods")
    return next(name for name in (pod["metadata"]["name"] for pod in pods) if name.rsplit("-", 2)[1] == str(rank))


def until_all_run(airflow: Airflow, run: RunStatus) -> None:
    airflow.api.wait_for_task(run.dag_id, run.run_id, "train", states=frozenset({"deferred"}))
    wait_until(lambda: "2 of 2 ranks run" in airflow.log(run, "train"), what="both ranks to run")
