"""What `airflow gpu cost` reads of nights in Airflow's database, whose tables are another in each version."""

from __future__ import annotations

import json
from typing import Any

from airflow.models.xcom import XComModel
from airflow.sdk import timezone

from airflow_gpu_provider.cli.metadata import recorded_bills
from tests.dry_nights.dags import block, dag
from tests.dry_nights.installation import Airflow, Work


def usage(total: float) -> dict[str, Any]:
    return {"pool": "train", "node_seconds": {"working": 3600.0}, "cost": {"total": total}, "currency": "USD"}


def test_the_bills_are_read_from_airflows_database(airflow: Airflow) -> None:
    with dag("nightly") as nightly, block():
        Work(task_id="train")
    with dag("weekly") as weekly, block():
        Work(task_id="train")
    pushed = [usage(1.0), json.dumps(usage(2.0)), "s3://elsewhere/usage", {"other": "operator's"}, usage(3.0)]
    runs, times = [], []
    for at, value in enumerate(pushed):
        night = airflow.begin(weekly if at == 4 else nightly)
        airflow.go_on()
        its = {"dag_id": night.dag_id, "run_id": night.run_id, "task_id": "gpus.scale_down"}
        times.append(timezone.utcnow())
        XComModel.set(key="usage", value=value, **its, serialize=False, session=airflow.session)
        airflow.session.commit()
        runs.append(night.run_id)

    def totals(*wanted: Any) -> list[float]:
        return [each.usage["cost"]["total"] for each in recorded_bills(*wanted)]

    assert totals(times[0]) == [1.0, 2.0, 3.0]
    assert totals(times[1]) == [2.0, 3.0]
    assert [each.run_id for each in recorded_bills(times[1])] == [runs[1], runs[4]]
    assert [(each.dag_id, each.at >= times[4]) for each in recorded_bills(times[0], "weekly")] == [("weekly", True)]
