"""Whether a pod could run on a node: kube-scheduler's filters for selector, affinity, taints and resources.

Not looked at, unlike in cluster-autoscaler: topology spread, affinity between pods, volumes, and the pods of DaemonSets
that a new node would get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from gpu_sandbox.autoscaler.groups import NodeTemplate, Resources
from gpu_sandbox.nodes import quantities
from gpu_sandbox.nodes.spec import TaintLike

Pod = Mapping[str, Any]
_NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
_NOT_TOLERATED = "node(s) had untolerated taint(s)"


def requests(pod: Pod) -> dict[str, Decimal]:
    """What the pod takes of a node; itself counts as one of `pods`."""
    return {"pods": Decimal(1)} | quantities.requests(pod)


def why_not(pod: Pod, node: NodeTemplate, *, free: Resources) -> str | None:
    """The scheduler's reason against a node with so much left, or None if the pod fits."""
    if not selected(pod, node.labels):
        return _NOT_SELECTED
    if any(not _tolerated(taint, pod["spec"].get("tolerations") or ()) for taint in node.taints):
        return _NOT_TOLERATED
    return next(
        (
            "Too many pods" if resource == "pods" else f"Insufficient {resource}"
            for resource, amount in requests(pod).items()
            if amount > free.get(resource, Decimal(0))
        ),
        None,
    )


def selected(pod: Pod, labels: Mapping[str, str]) -> bool:
    """Whether the pod's node selector and required node affinity name a node with these labels."""
    spec = pod["spec"]
    selector: Mapping[str, str] = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_term_matches(term, labels) for term in required.get("nodeSelectorTerms") or ())


def _term_matches(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A term without expressions matches nothing, and no node to come has a name that `matchFields` could know."""
    expressions = term.get("matchExpressions") or ()
    return bool(expressions) and not term.get("matchFields") and all(_expression(each, labels) for each in expressions)


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            return _compared(operator, value, values)


def _compared(operator: str, value: str | None, values: Iterable[str]) -> bool:
    try:
        number, limit = int(value or ""), int(next(iter(values), ""))
    except ValueError:
        return False
    return number > limit if operator == "Gt" else number < limit


def _tolerated(taint: TaintLike, tolerations: Iterable[Mapping[str, Any]]) -> bool:
    return taint.effect == "PreferNoSchedule" or any(_tolerates(each, taint) for each in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: TaintLike) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect) or toleration.get("key") not in (None, "", taint.key):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.value or "")


def less(free: Resources, taken: Resources) -> dict[str, Decimal]:
    """What is left once `taken` is gone; resources that a node has never heard of stay unknown."""
    return {name: amount - taken.get(name, Decimal(0)) for name, amount in free.items()}
