"""An upgrade in mid-run: no training is lost, and no machine stays."""

from __future__ import annotations

from tests.airflow.harness import Airflow
from tests.airflow.pools import zero

HANDED_BACK = "The triggerer runs an earlier release than the worker"


def test_a_night_begins_in_a_later_release_than_its_triggerer_s(airflow: Airflow) -> None:
    """A task that hands its record back is deferred for a moment only: Airflow may lose it (apache/airflow#72716)."""
    finished = airflow.run_dag("later_release", first_tries=True)
    assert finished.state == "success", airflow.account()
    for task in ("later-release.ensure", "train"):
        assert finished.task(task).try_number == 1, airflow.account()
        assert HANDED_BACK in airflow.log(finished, task), airflow.account()
    assert airflow.log(finished, "train").count("Created pod") == 1, airflow.account()
    assert airflow.xcom(finished, "train") == {"accuracy": 1}
    zero(airflow, "later-release")
