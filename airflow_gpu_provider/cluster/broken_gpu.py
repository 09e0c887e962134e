"""Which node has a broken GPU: what its conditions, its mark and its label say about it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

BAD_GPU = "airflow-gpu-provider/bad-gpu"
"""The annotation on a node with a broken GPU: when that was seen, in which boot, and why. Taking it off forgives.

The label of that name, by which pods avoid the node, follows it, and the node's conditions."""

OURS = "boot-"  # how the label's value begins, unless a person has set it

# The EKS node monitoring agent says AcceleratedHardwareReady=False. Checks of node-problem-detector's kind say a
# problem by a condition that is True; its name has to tell of trouble, for others say by True that all is well.
_READY = "AcceleratedHardwareReady"
_PROBLEM = re.compile(
    r"(gpu|nvlink|xid).*(unhealthy|missing|error|inactive|lost|bad|fail|fault|problem)", re.IGNORECASE
)


def why_bad(raw: Mapping[str, Any]) -> str:
    """Return why the node's GPUs are not to be trusted, in words; empty where nothing speaks against them."""
    return _by_conditions(raw) or _by_mark(raw) or _by_label(raw)


def _by_conditions(raw: Mapping[str, Any]) -> str:
    for condition in (raw.get("status") or {}).get("conditions") or ():
        kind, is_true = condition["type"], condition.get("status") == "True"
        if (kind == _READY and condition.get("status") == "False") or (is_true and _PROBLEM.search(kind)):
            reason = f"{condition.get('reason') or ''}: {condition.get('message') or ''}".strip(": ")
            return f"{kind}={condition['status']}" + (f" ({reason})" if reason else "")
    return ""


def _by_mark(raw: Mapping[str, Any]) -> str:
    text = (raw["metadata"].get("annotations") or {}).get(BAD_GPU)
    if text is None:
        return ""
    try:
        mark = json.loads(text)
        boot, why = mark["boot"], str(mark["why"])
    except (KeyError, TypeError, ValueError):
        return f"the annotation {BAD_GPU}"  # a person's own
    return why if boot == boot_of(raw) else ""


def _by_label(raw: Mapping[str, Any]) -> str:
    label = label_of(raw)
    return "" if label is None or label.startswith(OURS) else f"the label {BAD_GPU}"  # a person's own


def label_of(raw: Mapping[str, Any]) -> str | None:
    return (raw["metadata"].get("labels") or {}).get(BAD_GPU)


def boot_of(raw: Mapping[str, Any]) -> str:
    return str(((raw.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))
