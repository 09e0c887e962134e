"""The DAGs of test_harness.py: the smallest ones that show that Airflow itself is there and works."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, Context, task
from airflow.sdk.exceptions import AirflowException


class Defers(BaseOperator):
    """Waits in the triggerer, for longer than the executor needs to see its first leg end."""

    def execute(self, context: Context) -> None:
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=3)), method_name="resume")

    def resume(self, context: Context, event: Any) -> str:
        return "resumed"


with DAG("harness_trivial", schedule=None):

    @task
    def echo(params: dict[str, Any] | None = None, **context: Any) -> Any:
        return context["dag_run"].conf.get("word", "nothing")

    @task(retries=1, retry_delay=timedelta(seconds=0))
    def second_try_lucky(**context: Any) -> int:
        if context["ti"].try_number == 1:
            raise AirflowException("the first try always fails")
        return int(context["ti"].try_number)

    echo() >> second_try_lucky()

with DAG("harness_deferred", schedule=None):
    Defers(task_id="defers")

with DAG("harness_long", schedule=None):

    @task
    def sleeps() -> None:
        import time

        time.sleep(600)

    sleeps()
