"""An upgrade in mid-run: no training is lost, and no machine stays."""

from __future__ import annotations

from tests.airflow.harness import Airflow

HANDED_BACK = "The triggerer runs an earlier release than the worker"


def test_a_night_begins_in_a_later_release_than_its_triggerer_s(airflow: Airflow) -> None:
    finished = airflow.run_dag("later_release")
    assert finished.state == "success", airflow.account()
    for task in ("later-release.ensure", "train"):
        assert HANDED_BACK in airflow.log(finished, task), task
    assert airflow.log(finished, "train").count("Created pod") == 1
    assert finished.task("train").try_number == 1
    assert airflow.xcom(finished, "train") == {"accuracy": 1}
    assert airflow.leftovers().nothing
