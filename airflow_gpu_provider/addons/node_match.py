"""Whether a pod's node selector, affinity and tolerations let it onto a node that may not exist yet. Pure.

The labels of a node that does not exist are known only in part, so the answer has three values: True, False, and
None for "it depends on a label that nobody knows yet".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.cluster.node_requirements import is_met, untolerated
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
    if untolerated(node.taints, spec.get("tolerations") or ()):
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
    key = expression["key"]
    if key not in node.labels and node.is_open(key):
        return None
    return is_met(expression, node.labels.get(key))


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
