"""What each task of a recorded night does: it leaves what its run's conf has for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 600.0


class Leaving:
    """Comes before an operator, and leaves what the run's conf has under the task's id.

    That is XComs by key, an error to end with, a file to wait for. It goes on as long as AIRFLOW_HOME has a file
    `hold-` with the DAG's id, whatever has started the run.
    """

    task_id: str
    dag_id: str

    def execute(self, context: Any) -> None:
        recorded = context["dag_run"].conf.get(self.task_id, {})
        if recorded.get("until"):
            _wait_for(f"{recorded['until']} to come", Path(recorded["until"]).exists)
        hold = Path(os.environ["AIRFLOW_HOME"], f"hold-{self.dag_id}")
        _wait_for(f"{hold} to go", lambda: not hold.exists())
        for key, value in recorded.get("xcoms", {}).items():
            context["ti"].xcom_push(key=key, value=value)
        if recorded.get("error") and context["ti"].try_number <= recorded.get("errors", 100):
            raise RuntimeError(recorded["error"])


def _wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.2)
