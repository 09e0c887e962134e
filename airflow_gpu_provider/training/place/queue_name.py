"""The LocalQueue of Kueue that an object is queued in: by an argument, or by its label."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.values import is_dns_label, is_template
from airflow_gpu_provider.scaling.state.gang_jobs import QUEUE_LABEL


def check_queue_name(queue_name: str | None, labels: object = None) -> None:
    """Raise PoolSpecError unless it is a valid LocalQueue name, and the labels given with it name no other queue."""
    if queue_name is None or is_template(queue_name):
        return
    if not is_dns_label(queue_name):
        raise PoolSpecError(
            f"queue_name={queue_name!r}.", "It is the name of a LocalQueue of Kueue: a DNS label, like team-a."
        )
    labelled = labels.get(QUEUE_LABEL, queue_name) if isinstance(labels, Mapping) else queue_name
    if labelled != queue_name and not is_template(labelled):
        raise PoolSpecError(f"queue_name={queue_name!r}, but the label {QUEUE_LABEL} is {labelled!r}.", "Give one.")


def queue_of(queue_name: str | None, labels: Mapping[str, str] | None) -> str:
    """Return the LocalQueue of an object with these labels, both rendered; empty for none.

    Raises:
        PoolSpecError: As for `check_queue_name`.
    """
    check_queue_name(queue_name, labels)
    return queue_name or str((labels or {}).get(QUEUE_LABEL, ""))
