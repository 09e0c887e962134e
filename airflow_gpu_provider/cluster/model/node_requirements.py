"""What a pod's spec, or a provisioner's, asks of a node: node selector requirements, and tolerated taints. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_gpu_provider.pools import Taint

# Gte and Lte are Karpenter's own (pkg/apis/crds/karpenter.sh_nodepools.yaml).
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "Gt": operator.gt,
    "Lt": operator.lt,
    "Gte": operator.ge,
    "Lte": operator.le,
}

Requirement = Mapping[str, Any]
"""A NodeSelectorRequirement as JSON: `key`, `operator` and `values`."""


def is_met(requirement: Requirement, value: str | None) -> bool:
    """Return True if a node whose label has this value, None for no such label, meets the requirement."""
    values: Sequence[str] = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    compare = _COMPARISONS.get(requirement["operator"])
    if compare is None or value is None or not value.lstrip("-").isdigit():
        return False
    return compare(int(value), int(values[0]))


def values_named(spec: Mapping[str, Any], label: str) -> frozenset[str]:
    """Return the values of a label of which a pod's spec requires its node to have one; empty: it names none.

    Of the terms of its node affinity one is enough, so each has to name some.
    """
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    of_terms = [_named(term, label) for term in required.get("nodeSelectorTerms") or ()]
    by_affinity = frozenset[str]().union(*of_terms) if all(of_terms) else frozenset[str]()
    selected = (spec.get("nodeSelector") or {}).get(label)
    return by_affinity if selected is None else frozenset([selected])


def _named(term: Mapping[str, Any], label: str) -> frozenset[str]:
    about = [each for each in term.get("matchExpressions") or () if each["key"] == label]
    named = {value for each in about if each["operator"] == "In" for value in each.get("values") or ()}
    return frozenset(value for value in named if all(is_met(each, value) for each in about))


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Mapping[str, Any]]) -> list[Taint]:
    """Return the taints that keep a pod with these tolerations (as JSON) off a node."""
    tolerations = list(tolerations)
    hard = (taint for taint in taints if taint.effect != "PreferNoSchedule")
    return [taint for taint in hard if not any(_covers(toleration, taint) for toleration in tolerations)]


def _covers(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    key = toleration.get("key")
    if toleration.get("operator") == "Exists":
        return key in (None, "", taint.key)
    return key == taint.key and (toleration.get("value") or "") == taint.value
