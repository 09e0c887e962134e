"""How long Airflow takes until the next try of a task whose process was killed begins."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf

from airflow_gpu_provider.tasks.pool_operator import duration

_STARTS_IN = timedelta(minutes=1)
"""From Airflow's looks for dead tasks, ten seconds apart, to a worker that has read the DAG's file."""

_LONGEST_DELAY = timedelta(days=1)  # MAX_RETRY_DELAY of airflow/sdk/definitions/_internal/abstractoperator.py


def next_try_within(task: BaseOperator, try_number: int) -> timedelta:
    """Return in what time at most the next try begins, after this one's process was killed.

    Airflow notices that after scheduler.task_instance_heartbeat_timeout (default 5 minutes), and waits for the task's
    retry_delay (default 5 minutes); with a backoff for up to twice its power (TaskInstance.next_retry_datetime).
    """
    noticed = timedelta(seconds=conf.getint("scheduler", "task_instance_heartbeat_timeout", fallback=300))
    return noticed + _retry_delay(task, try_number) + _STARTS_IN


def _retry_delay(task: BaseOperator, try_number: int) -> timedelta:
    delay = duration("retry_delay", task.retry_delay)
    multiplier = float(task.retry_exponential_backoff)
    if multiplier in (0.0, 1.0):
        return delay
    at_most = min(duration("max_retry_delay", task.max_retry_delay or _LONGEST_DELAY), _LONGEST_DELAY)
    try:
        return min(timedelta(seconds=2 * delay.total_seconds() * multiplier ** (try_number - 1)), at_most)
    except OverflowError:
        return at_most
