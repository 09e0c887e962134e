"""Compute Engine's operations: what was done to instances and their groups, by callers and by Compute Engine itself.

Shapes are those of `Operation` in the API's discovery document: times in RFC 3339, `endTime` when DONE. What takes
a spot instance back is a system event, "compute.instances.preempted" ("Preemptible VM instances", Detecting whether an
instance was preempted). The list goes by name; with "creationTimestamp desc" the newest come first.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_sandbox.google.operations import timestamp

_KEPT = 5000  # as many as `gcloud compute operations list` shows


@dataclass(kw_only=True)
class ComputeOperation:
    """One operation. `target` is the whole URL of the instance or group, `target_id` its number."""

    kind: str
    target: str
    target_id: str
    started_at: float
    ended_at: float | None = None
    user: str = "system"
    name: str = field(default_factory=lambda: f"operation-{secrets.token_hex(8)}")
    id: str = field(default_factory=lambda: str(secrets.randbelow(9 * 10**18) + 10**18))

    @property
    def zone(self) -> str:
        """The zone's URL."""
        base, _, rest = self.target.partition("/zones/")
        return f"{base}/zones/{rest.partition('/')[0]}"

    def as_of(self, then: float) -> ComputeOperation:
        """The operation as it stood after its begin."""
        return replace(self, ended_at=None) if self.ended_at is not None and self.ended_at > then else self

    def describe(self) -> dict[str, Any]:
        """The operation in the API's shape."""
        started = timestamp(self.started_at)
        is_over = self.ended_at is not None
        described = {
            "kind": "compute#operation",
            "id": self.id,
            "name": self.name,
            "zone": self.zone,
            "operationType": self.kind,
            "targetLink": self.target,
            "targetId": self.target_id,
            "user": self.user,
            "status": "DONE" if is_over else "RUNNING",
            "progress": 100 if is_over else 0,
            "insertTime": started,
            "startTime": started,
            "selfLink": f"{self.zone}/operations/{self.name}",
        }
        return described | ({"endTime": timestamp(self.ended_at)} if self.ended_at is not None else {})


class ComputeOperations:
    """Those of one project, the oldest first."""

    def __init__(self) -> None:
        self._operations: dict[str, ComputeOperation] = {}

    def add(self, operation: ComputeOperation) -> ComputeOperation:
        self._operations[operation.name] = operation
        while len(self._operations) > _KEPT:
            del self._operations[next(iter(self._operations))]
        return operation

    def as_of(self, then: float) -> ComputeOperations:
        """The operations as they stood at that time; to be read only."""
        seen = ComputeOperations()
        begun = {name: each for name, each in self._operations.items() if each.started_at <= then}
        seen._operations = {name: each.as_of(then) for name, each in begun.items()}
        return seen

    @property
    def newest(self) -> ComputeOperation:
        return next(reversed(self._operations.values()))

    def get(self, name: str) -> ComputeOperation | None:
        return self._operations.get(name)

    def in_zone(self, zone: str) -> list[ComputeOperation]:
        return [each for each in self._operations.values() if each.zone.endswith(f"/zones/{zone}")]
