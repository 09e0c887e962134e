"""KubernetesPodOperator's callbacks, as GpuPodOperator calls them in its worker."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.providers.cncf.kubernetes.callbacks import ExecutionMode

if TYPE_CHECKING:
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator


def call_back(operator: KubernetesPodOperator, name: str, **what: Any) -> None:
    """Call the method of this name of each callback."""
    for callback in operator.callbacks:
        getattr(callback, name)(client=operator.client, mode=ExecutionMode.SYNC, operator=operator, **what)


def tell_progress(operator: KubernetesPodOperator, container: str, text: str, at: datetime | None) -> None:
    """Hand a line of a container's log to each callback; one that fails is logged."""
    timestamp = pendulum.instance(at) if at else None
    for callback in operator.callbacks:
        try:
            callback.progress_callback(
                line=text,
                client=operator.client,
                mode=ExecutionMode.SYNC,
                container_name=container,
                timestamp=timestamp,
                pod=operator.pod,
            )
        except Exception:
            operator.log.exception("The progress_callback of %s failed", callback)
