"""GKE's operations: pending, running, done - and, done, perhaps with an error."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpu_sandbox.clock import Clock
from gpu_sandbox.google.errors import GoogleApiError, error_info, not_found

# google.rpc.Code
RPC_RESOURCE_EXHAUSTED = 8
RPC_CANCELLED = 1
_RPC_NAMES = {RPC_RESOURCE_EXHAUSTED: "RESOURCE_EXHAUSTED", RPC_CANCELLED: "CANCELLED"}
_KEPT = 500


@dataclass(frozen=True, kw_only=True)
class OperationError:
    """Why an operation that is done did not do it. `condition` is GKE's own code, `GCE_STOCKOUT`."""

    message: str
    condition: str
    rpc_code: int = RPC_RESOURCE_EXHAUSTED


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an operation is: `over`, and with which error; `done` of `total` nodes."""

    over: bool = False
    error: OperationError | None = None
    done: int = 0
    total: int = 0


@dataclass(kw_only=True)
class Operation:
    """`begin` is called when it starts to run, `look` at each step after, `end` when it is over."""

    name: str
    kind: str
    target: str
    """Of the cluster or node pool: `projects/P/locations/L/clusters/C/nodePools/N`."""
    started_at: float
    begins_at: float
    begin: Callable[[float], None]
    look: Callable[[float], Progress]
    end: Callable[[OperationError | None], None]
    status: str = "PENDING"
    progress: Progress = field(default_factory=Progress)
    ended_at: float | None = None

    def advance(self, now: float, *, may_begin: bool) -> None:
        if self.status == "PENDING" and may_begin:
            self.status = "RUNNING"
            self.begin(now)
        if self.status == "RUNNING":
            self.progress = self.look(now)
            if self.progress.over:
                self.status, self.ended_at = "DONE", now
                self.end(self.progress.error)


class Operations:
    """All operations of one location, the newest last."""

    def __init__(self, *, project_id: str, location: str, pending: float, clock: Clock) -> None:
        self._project_id = project_id
        self._location = location
        self._pending = pending
        self._clock = clock
        self._operations: dict[str, Operation] = {}

    def start(
        self,
        kind: str,
        target: str,
        now: float,
        *,
        begin: Callable[[float], None],
        look: Callable[[float], Progress],
        end: Callable[[OperationError | None], None],
    ) -> Operation:
        """FAILED_PRECONDITION while the cluster has one of its own, or this node pool has one.

        The words are those of terraform-provider-google's issues 7638 and 10366.
        """
        for other in self._operations.values():
            if other.status != "DONE" and _clash(other.target, target):
                raise _in_the_way(other)
        operation = Operation(
            name=f"operation-{int(now * 1000)}-{secrets.token_hex(4)}",
            kind=kind,
            target=target,
            started_at=now,
            begins_at=now + self._pending,
            begin=begin,
            look=look,
            end=end,
        )
        self._operations[operation.name] = operation
        while len(self._operations) > _KEPT:
            del self._operations[next(iter(self._operations))]
        return operation

    def advance(self, now: float) -> None:
        for operation in self.running():
            operation.advance(now, may_begin=self._clock.reached(operation.begins_at))

    def mark(self) -> Hashable:
        """Differs where an operation has gone on."""
        return tuple((operation.name, operation.status, operation.progress) for operation in self._operations.values())

    def running(self) -> list[Operation]:
        return [operation for operation in self._operations.values() if operation.status != "DONE"]

    def list(self) -> list[dict[str, Any]]:
        return [self.describe(operation) for operation in self._operations.values()]

    def get(self, name: str) -> dict[str, Any]:
        """NOT_FOUND if there is none."""
        return self.describe(self._find(name))

    def cancel(self, name: str, now: float) -> None:
        """End it where it stands. NOT_FOUND; FAILED_PRECONDITION if it is over."""
        operation = self._find(name)
        if operation.status == "DONE":
            raise GoogleApiError("FAILED_PRECONDITION", f"Operation {name} is already done.")
        error = OperationError(message="The operation was cancelled.", condition="", rpc_code=RPC_CANCELLED)
        operation.status, operation.ended_at = "DONE", now
        operation.progress = Progress(over=True, error=error)
        operation.end(error)

    def _find(self, name: str) -> Operation:
        operation = self._operations.get(name)
        if operation is None:
            raise not_found(f"Not found: projects/{self._project_id}/locations/{self._location}/operations/{name}.")
        return operation

    def describe(self, operation: Operation) -> dict[str, Any]:
        base = f"https://container.googleapis.com/v1/projects/{self._project_id}/locations/{self._location}"
        described: dict[str, Any] = {
            "name": operation.name,
            "operationType": operation.kind,
            "status": operation.status,
            "zone": self._location,
            "location": self._location,
            "selfLink": f"{base}/operations/{operation.name}",
            "targetLink": f"https://container.googleapis.com/v1/{operation.target}",
            "startTime": timestamp(operation.started_at),
        }
        if operation.progress.total:
            described["progress"] = {
                "metrics": [
                    {"name": "NODES_TOTAL", "intValue": str(operation.progress.total)},
                    {"name": "NODES_DONE", "intValue": str(operation.progress.done)},
                ]
            }
        if operation.ended_at is not None:
            described["endTime"] = timestamp(operation.ended_at)
        return described | (_describe_error(operation.progress.error) if operation.progress.error else {})


def _describe_error(error: OperationError) -> dict[str, Any]:
    described: dict[str, Any] = {
        "error": {"code": error.rpc_code, "message": error.message},
        "statusMessage": error.message,
    }
    if error.condition:
        condition = {
            "code": error.condition,
            "canonicalCode": _RPC_NAMES[error.rpc_code],
            "message": error.message,
        }
        described |= {"nodepoolConditions": [condition]}
    return described


def _in_the_way(other: Operation) -> GoogleApiError:
    """The cluster's own operations are told as its state, and node pools' by name."""
    message = f"Cluster is running incompatible operation {other.name}."
    if "/nodePools/" not in other.target:
        message = "Cluster is currently being created, deleted, updated or repaired and cannot be updated."
    reason = error_info("CLUSTER_ALREADY_HAS_OPERATION", domain="container.googleapis.com")
    return GoogleApiError("FAILED_PRECONDITION", message, details=[reason])


def _clash(one: str, other: str) -> bool:
    """One operation for each node pool, and none beside one of the cluster's own."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
