"""Whether a pod's node selector, affinity and tolerations let it onto a node that may not exist yet. Pure.

The labels of a node that does not exist are known only in part, so the answer has three values: True, False, and
None for "it depends on a label that nobody knows yet".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.pools import Taint

Answer = bool | None
Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class NodePicture:
    """A node, there or to come.

    Attributes:
        labels: Its labels, as far as they are known.
        taints: All its taints.
        is_open: Says of a label that is not in `labels` whether the node may have it all the same.
    """

    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_open: Callable[[str], bool]


def runs_on(spec: Json, node: NodePicture) -> Answer:
    """Return True if taints, labels and affinity let a pod with this spec run on the node."""
    if not _tolerates(spec.get("tolerations") or (), node.taints):
        return False
    wanted = [{"key": k, "operator": "In", "values": [v]} for k, v in (spec.get("nodeSelector") or {}).items()]
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = [] if affinity is None else [_any(_term(t, node) for t in affinity.get("nodeSelectorTerms") or ())]
    return _all([*(_expression(e, node) for e in wanted), *terms])


def _term(term: Json, node: NodePicture) -> Answer:
    if term.get("matchFields"):
        return None  # the node's name: known to nobody
    expressions = term.get("matchExpressions") or ()
    return _all(_expression(e, node) for e in expressions) if expressions else False


def _expression(expression: Json, node: NodePicture) -> Answer:
    key, operator = expression["key"], expression["operator"]
    if key not in node.labels and node.is_open(key):
        return None
    value = node.labels.get(key)
    values = expression.get("values") or []
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return _compares(operator, value, values)


def _compares(operator: str, value: str | None, values: list[str]) -> Answer:
    if value is None or not value.lstrip("-").isdigit():
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


def _tolerates(tolerations: Iterable[Json], taints: Iterable[Taint]) -> bool:
    hard = [taint for taint in taints if taint.effect != "PreferNoSchedule"]
    return all(any(_covers(toleration, taint) for toleration in tolerations) for taint in hard)


def _covers(toleration: Json, taint: Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    key = toleration.get("key")
    if toleration.get("operator") == "Exists":
        return key in (None, "", taint.key)
    return key == taint.key and (toleration.get("value") or "") == taint.value


def _all(answers: Iterable[Answer]) -> Answer:
    answers = list(answers)
    if False in answers:
        return False
    return None if None in answers else True


def _any(answers: Iterable[Answer]) -> Answer:
    answers = list(answers)
    if True in answers:
        return True
    return None if None in answers else False
