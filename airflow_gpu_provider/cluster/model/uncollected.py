"""Ended pods whose log and result are still to be read: how they are known, and for how long they hold their nodes.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.cluster.model.refusals import XCOM_SIDECAR
from airflow_gpu_provider.pools.switch import COLLECT_WITHIN

UNCOLLECTED = "airflow-gpu-provider/uncollected"
"""The annotation of a pod whose log and result are still to be read; taken off when they have been.

Its value is for how many seconds after its end the pod then holds its node, if that is longer than COLLECT_WITHIN.
"""

_SECONDS = re.compile(r"[0-9]{1,7}")


def collect_within(noted: str) -> timedelta:
    """Return for how long an ended pod waits to be collected; the least where its annotation does not say it."""
    return max(COLLECT_WITHIN, timedelta(seconds=int(noted))) if _SECONDS.fullmatch(noted) else COLLECT_WITHIN


def has_succeeded(status: Mapping[str, Any]) -> bool:
    """Return True if a pod's containers ended with exit code 0, whatever becomes of the one that keeps its result."""
    own = [each for each in status.get("containerStatuses") or () if each.get("name") != XCOM_SIDECAR]
    return bool(own) and all(_exit_code(each) == 0 for each in own)


def _exit_code(container: Mapping[str, Any]) -> int | None:
    code: int | None = ((container.get("state") or {}).get("terminated") or {}).get("exitCode")
    return code
