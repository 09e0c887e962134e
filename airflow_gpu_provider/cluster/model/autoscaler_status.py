"""What autoscalers say of themselves: cluster-autoscaler's status ConfigMap, and ComputeClasses.

The ConfigMap says when cluster-autoscaler last looked, and which groups it avoids.

Whether a ComputeClass is healthy, and which of its priorities it does not try now, GKE says in the fields of
cloud.google.com/kubernetes-engine/docs/reference/crds/computeclass. `status.priorityStatuses` is written by GKE 1.36.4
and newer; its conditions are those of Google's guide to debugging ComputeClasses (the skill gke-compute-classes): a
suspended priority is not tried until the time in its message.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.untrusted import plain

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


# -- ComputeClasses ------------------------------------------------------------------------------------------

_IN_SOME_ZONES = "ProvisioningConstrained"
_KEEPS_NODES_AWAY = ("ProvisioningSuspended", _IN_SOME_ZONES, "IpSpaceExhausted", "RuleMisconfigured")


@dataclass(frozen=True, kw_only=True)
class ComputeClass:
    """One ComputeClass.

    Attributes:
        refused: Why GKE adds no node by it, in GKE's words; empty where it does, or has not said yet.
        refused_priorities: What keeps priorities from bringing nodes now, in GKE's words.
        is_out: Whether that is so for every one of its priorities.
    """

    name: str
    refused: str = ""
    refused_priorities: tuple[str, ...] = ()
    is_out: bool = False

    @classmethod
    def parse(cls, raw: Json) -> Self:
        spec, status = raw.get("spec") or {}, raw.get("status") or {}
        health = (each for each in status.get("conditions") or () if each.get("type") == "Health")
        refused = {
            str(each.get("identifier")): found
            for each in status.get("priorityStatuses") or ()
            if (found := _refusals(each.get("conditions") or ()))
        }
        suspended = [name for name, found in refused.items() if found.keys() - {_IN_SOME_ZONES}]
        return cls(
            name=raw["metadata"]["name"],
            refused=next((_in_words(each) for each in health if each.get("status") == "False"), ""),
            refused_priorities=tuple(
                f"priority {name}: {words}" for name, found in refused.items() for words in found.values()
            ),
            is_out=bool(suspended) and len(suspended) >= len(spec.get("priorities") or ()),
        )


def _refusals(conditions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {
        each["type"]: _in_words(each)
        for each in conditions
        if each.get("type") in _KEEPS_NODES_AWAY and each.get("status") == "True"
    }


def _in_words(condition: Mapping[str, Any]) -> str:
    return plain(str(condition.get("message") or condition.get("reason") or condition.get("type")))
