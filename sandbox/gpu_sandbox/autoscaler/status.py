"""What the ConfigMap cluster-autoscaler-status says, in cluster-autoscaler's words and YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from gpu_sandbox.autoscaler.cluster import Node, go_time
from gpu_sandbox.autoscaler.groups import FailedLaunch, NodeGroup

# It is made on every loop, and libyaml is ten times as quick.
_DUMPER: type = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """One group, with what the autoscaler is doing about it."""

    group: NodeGroup
    nodes: Sequence[Node]
    growing: bool
    backoff: FailedLaunch | None
    candidates: int


class StatusText:
    """Writes it anew on every loop; remembers since when each condition is as it is."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, ...], tuple[str, str]] = {}

    def write(self, groups: Sequence[GroupState], nodes: Sequence[Node], *, now: datetime) -> str:
        # Those that are on no longer there begin anew should they come back.
        self._seen: set[tuple[str, ...]] = set()
        text = self._write(groups, nodes, now=now)
        self._since = {key: since for key, since in self._since.items() if key in self._seen}
        return text

    def _write(self, groups: Sequence[GroupState], nodes: Sequence[Node], *, now: datetime) -> str:
        candidates = sum(state.candidates for state in groups)
        unregistered = sum(_unregistered(state) for state in groups)
        growing = any(state.growing for state in groups)
        said = {
            "time": go_time(now),
            "autoscalerStatus": "Running",
            "clusterWide": {
                "health": self._condition(
                    ("health",), "Healthy", now, nodeCounts=_counts(nodes, unregistered=unregistered)
                ),
                "scaleUp": self._condition(("scaleUp",), "InProgress" if growing else "NoActivity", now),
                "scaleDown": self._scale_down(("scaleDown",), candidates, now),
            },
            "nodeGroups": [self._group(state, now) for state in groups],
        }
        if not groups:
            del said["nodeGroups"]
        return str(yaml.dump(said, Dumper=_DUMPER, sort_keys=False))

    def _group(self, state: GroupState, now: datetime) -> dict[str, Any]:
        group = state.group
        return {
            "name": group.name,
            "health": self._condition(
                (group.name, "health"),
                "Healthy",
                now,
                nodeCounts=_counts(state.nodes, unregistered=_unregistered(state)),
                cloudProviderTarget=group.target,
                minSize=group.min_size,
                maxSize=group.max_size,
            ),
            "scaleUp": self._condition((group.name, "scaleUp"), _scale_up(state), now, backoffInfo=_backoff(state)),
            "scaleDown": self._scale_down((group.name, "scaleDown"), state.candidates, now),
        }

    def _scale_down(self, key: tuple[str, ...], candidates: int, now: datetime) -> dict[str, Any]:
        if not candidates:
            return self._condition(key, "NoCandidates", now)
        return self._condition(key, "CandidatesPresent", now, candidates=candidates)

    def _condition(self, key: tuple[str, ...], status: str, now: datetime, **more: Any) -> dict[str, Any]:
        probed = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        before = self._since.get(key)
        since = before[1] if before is not None and before[0] == status else probed
        self._since[key] = (status, since)
        self._seen.add(key)
        return {"status": status, **more, "lastProbeTime": probed, "lastTransitionTime": since}


def _scale_up(state: GroupState) -> str:
    if state.growing:
        return "InProgress"
    return "Backoff" if state.backoff is not None else "NoActivity"


def _backoff(state: GroupState) -> Mapping[str, str]:
    if state.backoff is None or state.growing:
        return {}
    return {"errorCode": state.backoff.code, "errorMessage": state.backoff.message}


def _unregistered(state: GroupState) -> int:
    return max(state.group.target - len(state.nodes), 0)


def _counts(nodes: Sequence[Node], *, unregistered: int) -> dict[str, Any]:
    ready = sum(node.usable for node in nodes)
    deleted = sum(node.being_deleted for node in nodes)
    registered: dict[str, Any] = {
        "total": len(nodes),
        "ready": ready,
        "notStarted": len(nodes) - ready,
        "suspended": 0,
        "unready": {"total": 0, "resourceUnready": 0},
    }
    if deleted:
        registered["beingDeleted"] = deleted
    return {"registered": registered, "longUnregistered": 0, "unregistered": unregistered}
