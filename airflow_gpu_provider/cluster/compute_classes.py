"""What GKE says of a ComputeClass: whether it is healthy, and which of its priorities it does not try now.

The fields are those of cloud.google.com/kubernetes-engine/docs/reference/crds/computeclass. `status.priorityStatuses`
is written by GKE 1.36.4 and newer; its conditions are those of Google's guide to debugging ComputeClasses (the skill
gke-compute-classes): a suspended priority is not tried until the time in its message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.rest import call

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_CLASSES = "/apis/cloud.google.com/v1/computeclasses"
_IN_SOME_ZONES = "ProvisioningConstrained"
_KEEPS_NODES_AWAY = ("ProvisioningSuspended", _IN_SOME_ZONES, "IpSpaceExhausted", "RuleMisconfigured")


@dataclass(frozen=True, kw_only=True)
class ComputeClass:
    """One ComputeClass.

    Attributes:
        name: Its name.
        refused: Why GKE adds no node by it, in GKE's words; empty where it does, or has not said yet.
        refused_priorities: What keeps priorities from bringing nodes now, in GKE's words.
        is_out: Whether that is so for every one of its priorities.
    """

    name: str
    refused: str = ""
    refused_priorities: tuple[str, ...] = ()
    is_out: bool = False


def read_compute_class(api: ApiClient, name: str) -> ComputeClass | None:
    """Return a ComputeClass; None where the cluster has none of that name, or knows no ComputeClasses."""
    try:
        return _parsed(call(api, "get", f"{_CLASSES}/{name}", resource="computeclasses"))
    except ObjectNotFound:
        return None


def _parsed(raw: Mapping[str, Any]) -> ComputeClass:
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    health = (each for each in status.get("conditions") or () if each.get("type") == "Health")
    refused = {
        str(each.get("identifier")): found
        for each in status.get("priorityStatuses") or ()
        if (found := _refusals(each.get("conditions") or ()))
    }
    suspended = [name for name, found in refused.items() if found.keys() - {_IN_SOME_ZONES}]
    return ComputeClass(
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
    return str(condition.get("message") or condition.get("reason") or condition.get("type"))
