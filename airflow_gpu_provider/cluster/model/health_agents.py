"""What the agents that watch nodes' GPUs say of a node: by conditions, taints, and the label of a cordon. Pure.

- EKS's node monitoring agent: AcceleratedHardwareReady=False (Amazon EKS, "Node health").
- node-problem-detector and its kind: a condition that is True, whose name tells of trouble with a GPU; others say by
  True that all is well.
- NVIDIA's NVSentinel: a condition for each check, True with the reason `<check>IsNotHealthy` for what is fatal
  (NVIDIA/NVSentinel, process_node_events.go: updateHealthEventReason); by default it cordons the node, with a label
  that says so (docs/configuration/fault-quarantine.md: `<prefix>cordon-by`), and taints it where its rules have a taint
  (docs/INTEGRATIONS.md: nvidia.com/gpu-xid-error, gpu.health/memory-error). A node that a person has uncordoned keeps
  its conditions, and an annotation says that they are known (docs/runbooks/node-conditions.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_gpu_provider.untrusted import one_line

_READY = "AcceleratedHardwareReady"
_GPU_PART = re.compile(r"gpu|nvlink|nvswitch|xid", re.IGNORECASE)
_TROUBLE = re.compile(
    r"unhealthy|missing|(?<!nonfatal)error|inactive|lost|bad|fail|(?<!de)fault|problem|fallen|down$|xid$", re.IGNORECASE
)
_DCGM_WATCH = re.compile(r"^Gpu[A-Z]\w*Watch$")
"""The names of NVSentinel's checks by DCGM's health watches, whatever the reason: its pages show others, too."""

_IS_NOT_HEALTHY = "IsNotHealthy"
_NVSENTINEL = "NVSentinel"
_CORDONED_BY, _CORDON_REASON = "cordon-by", "cordon-reason"
_KNOWN_TO_A_PERSON = "quarantinedNodeUncordonedManually"
_MAINTENANCE = "maintenance"
"""In the name of a check: the cloud's appointment with a machine, which says nothing against its GPUs."""

_OF_NVIDIA = re.compile(r"^(?:(?:[\w.-]+\.)?nvidia\.com|[\w.-]+\.health)$")
"""Domains of taints that NVIDIA's documents give such nodes, and of its DRA driver's (gpu.nvidia.com/xid)."""


def reason_of_agents(raw: Mapping[str, Any]) -> str:
    """Return what an agent says against a node's GPUs, in one line with the check's name; empty where none does."""
    return next((one_line(reason) for reason in _reasons(raw)), "")


def _reasons(raw: Mapping[str, Any]) -> Iterator[str]:
    metadata = raw["metadata"]
    is_known = any(key.endswith(_KNOWN_TO_A_PERSON) for key in metadata.get("annotations") or {})
    for condition in (raw.get("status") or {}).get("conditions") or ():
        if _is_bad(condition, is_known=is_known):
            reason = f"{condition.get('reason') or ''}: {condition.get('message') or ''}".strip(": ")
            yield f"{condition['type']}={condition['status']}" + (f" ({reason})" if reason else "")
    yield from _cordon(metadata.get("labels") or {})
    for taint in (raw.get("spec") or {}).get("taints") or ():
        domain, _, name = taint["key"].partition("/")
        is_of_nvidia = name and _OF_NVIDIA.match(domain)
        if is_of_nvidia and taint["effect"] != "PreferNoSchedule" and _is_problem(taint["key"]):
            yield f"taint {taint['key']}={taint.get('value') or ''}:{taint['effect']}"


def _cordon(labels: Mapping[str, str]) -> Iterator[str]:
    """Yield who has cordoned the node, and by which of its rules; the prefix of NVSentinel's labels is configurable."""
    for key, by in labels.items():
        if key.endswith(_CORDONED_BY) and by == _NVSENTINEL and not key.endswith(f"un{_CORDONED_BY}"):
            why = labels.get(key.removesuffix(_CORDONED_BY) + _CORDON_REASON)
            yield f"cordoned by {by}" + (f" ({why})" if why else "")


def _is_bad(condition: Mapping[str, Any], *, is_known: bool) -> bool:
    kind, status = condition["type"], condition.get("status")
    if kind == _READY:
        return bool(status == "False")
    if status != "True" or _MAINTENANCE in kind.lower():
        return False
    if str(condition.get("reason") or "").endswith(_IS_NOT_HEALTHY):
        return not is_known
    return _is_problem(kind) or _DCGM_WATCH.match(kind) is not None


def _is_problem(name: str) -> bool:
    part = _GPU_PART.search(name)
    return part is not None and _TROUBLE.search(name, part.end()) is not None
