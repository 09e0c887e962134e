"""What cluster-autoscaler says of itself in its status ConfigMap: when it last looked, and which groups it avoids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.rest import call
from airflow_gpu_provider.errors import AutoscalerNotRunning

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

STATUS_NAMESPACE = "kube-system"
STATUS_NAME = "cluster-autoscaler-status"
"""--namespace's and --status-config-map-name's defaults."""

LAST_UPDATED = "cluster-autoscaler.kubernetes.io/last-updated"

FRESH = timedelta(minutes=3)
"""How old the report of a living autoscaler can be: it writes one every --scan-interval (10 s), and a new leader needs
some 15 s more; a minute or two are for clocks that differ."""

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? ([+-]\d{4})"
)  # Go: 2006-01-02 15:04:05.999999999 -0700 MST


@dataclass(frozen=True, kw_only=True)
class AutoscalerStatus:
    """One report.

    Attributes:
        updated_at: When it was written; None where that cannot be read.
        state: "Running", or "Initializing" until its first look at the cluster is done; empty where it does not say.
        groups: The groups that it scales, by their names in the cloud; None where it does not say.
        backoff: The groups that it does not try for a while, by their names in the cloud, and why in its words.
    """

    updated_at: datetime | None
    state: str = ""
    groups: tuple[str, ...] | None = None
    backoff: Mapping[str, str] = field(default_factory=dict)

    def is_fresh(self, now: datetime) -> bool:
        """Whether the autoscaler that wrote it is alive."""
        return self.updated_at is not None and now - self.updated_at < FRESH

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read the ConfigMap. What is not readable in it is left out: only the time decides on anything."""
        report = _report((raw.get("data") or {}).get("status") or "")
        groups = report.get("nodeGroups") or []
        state = str(report.get("autoscalerStatus") or "")
        return cls(
            updated_at=_time((raw["metadata"].get("annotations") or {}).get(LAST_UPDATED) or ""),
            state=state,
            groups=tuple(str(group.get("name")) for group in groups) if state == "Running" else None,
            backoff={str(group.get("name")): why for group in groups if (why := _backoff(group))},
        )


def read_status(api: ApiClient) -> AutoscalerStatus | None:
    """Return the newest report, or None where there is none."""
    path = f"/api/v1/namespaces/{STATUS_NAMESPACE}/configmaps/{STATUS_NAME}"
    try:
        return AutoscalerStatus.parse(call(api, "get", path, resource="configmaps"))
    except ObjectNotFound:
        return None


def check_running(api: ApiClient, pool_name: str, now: datetime, *, or_else: str = "") -> AutoscalerStatus:
    """Return the newest report of an autoscaler that is alive; `or_else` is what can be done without one.

    Raises:
        AutoscalerNotRunning: There is no report, or it is old.
    """
    status = read_status(api)
    if status is not None and status.is_fresh(now):
        return status
    report = f"ConfigMap {STATUS_NAMESPACE}/{STATUS_NAME}"
    why = f"{report} does not exist"
    if status is not None:
        written = f"at {status.updated_at:%Y-%m-%d %H:%M:%SZ}" if status.updated_at else "at an unknown time"
        why = f"{report} was last written {written}, and a living one writes it every few seconds"
    raise AutoscalerNotRunning(
        f"Pool {pool_name}: no cluster-autoscaler reports from the cluster: {why}.",
        "Install it (InstallClusterAutoscalerOperator), or look at the log of the one that is there, which needs its"
        f" default --write-status-configmap{f'; {or_else}' if or_else else ''}.",
        pool=pool_name,
        config_map=f"{STATUS_NAMESPACE}/{STATUS_NAME}",
    )


def _report(text: str) -> Mapping[str, Any]:
    import yaml

    try:
        # It has some lines for each node group, and libyaml, where there is one, reads them ten times as quickly.
        report = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return {}  # a release before 1.30 writes prose
    return report if isinstance(report, dict) else {}


def _backoff(group: Mapping[str, Any]) -> str:
    scale_up = group.get("scaleUp") or {}
    if scale_up.get("status") != "Backoff":
        return ""
    info = scale_up.get("backoffInfo") or {}
    words = [str(info[key]) for key in ("errorCode", "errorMessage") if info.get(key)]
    return ": ".join(words) or "no reason given"


def _time(text: str) -> datetime | None:
    found = _TIME.match(text)
    return datetime.strptime(" ".join(found.groups()), "%Y-%m-%d %H:%M:%S %z").astimezone(UTC) if found else None
