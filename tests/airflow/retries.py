"""AGAIN: the `default_args` with which a DAG of the tests outlives what Airflow itself loses.

Airflow 3.3 fails a task that comes back within seconds of deferring (apache/airflow#72716): Ensure, for one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

AGAIN: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=1)}
