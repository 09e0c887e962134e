"""Resize requests of a managed instance group: all of a request's instances at once, or none of them yet.

By "About resize requests in a MIG" of Compute Engine's documentation, and InstanceGroupManagerResizeRequest of compute
v1: the target size grows when a request is created, and the group has managed instances in CREATING for it, without
virtual machines. Without stock or quota a request stays ACCEPTED, and is tried again; by any other error it is FAILED,
and the size goes down again. It has SUCCEEDED once all its virtual machines are there, which end with its run duration.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gpu_sandbox.google.instance_groups import InstanceGroup
    from gpu_sandbox.google.members import Member

State = Literal["ACCEPTED", "PROVISIONING", "SUCCEEDED", "FAILED", "CANCELLED"]
STOCKOUT = "ZONE_RESOURCE_POOL_EXHAUSTED"
QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
_WAITING = "Waiting for resources. Currently there are not enough resources available to fulfill the request."
"""The error of a request's last attempt where there is no stock, as users see it."""
REFUSED = frozenset(
    {
        *("AGGREGATE_RESERVATION_NOT_EXIST", "CONDITION_NOT_MET", "INVALID_ARGUMENT", "INVALID_GPU_TYPE"),
        *("INVALID_MACHINE_TYPE", "PERMISSION_DENIED", "QUEUING_INFEASIBLE_NO_CAPACITY", "UNSUPPORTED_OPERATION"),
    }
)
"""Codes with which one is not even created: GoogleCloudPlatform/cluster-autoscaler,
pkg/provisioningrequests/reconciler/reasons/reasons.go."""


@dataclass(kw_only=True)
class ResizeRequest:
    """`error` is the code and message of its last attempt."""

    name: str
    run_seconds: float
    state: State = "ACCEPTED"
    error: tuple[str, str] | None = None
    tried_next: float = 0.0


class ResizeRequests:
    """Those of one group."""

    def __init__(self, group: InstanceGroup) -> None:
        self._group = group
        self._by_name: dict[str, ResizeRequest] = {}

    def create(self, name: str, *, by: int, run_seconds: float, now: float) -> tuple[str, str] | None:
        """Return the code and message of the error if it is refused. ValueError if one has that name."""
        if name in self._by_name:
            raise ValueError(f"a resize request of {self._group.name} is named {name}")
        refused = self._group.refused(1)
        if refused is not None and refused[0] in REFUSED:
            return refused
        request = self._by_name[name] = ResizeRequest(name=name, run_seconds=run_seconds)
        for _ in range(by):
            self._group.add_member(request)
        self._advance(request, now)
        return None

    def withdraw(self, name: str, now: float) -> None:
        """Delete it if it is there: one that waits is cancelled."""
        request = self._by_name.pop(name, None)
        if request is not None and request.state == "ACCEPTED":
            self._roll_back(request, now)

    def all(self) -> dict[str, ResizeRequest]:
        """By name."""
        return dict(self._by_name)

    def advance(self, now: float) -> None:
        for request in list(self._by_name.values()):
            self._advance(request, now)

    def _advance(self, request: ResizeRequest, now: float) -> None:
        members = self._members(request)
        if request.state == "ACCEPTED" and not members:
            request.state = "CANCELLED"
        elif request.state == "ACCEPTED" and self._group.reached(request.tried_next):
            self._try(request, members, now)
        elif request.state == "PROVISIONING" and all(member.runs for member in members):
            request.state = "SUCCEEDED"

    def _try(self, request: ResizeRequest, members: list[Member], now: float) -> None:
        request.error = self._refused(len(members))
        if request.error is None:
            request.state = "PROVISIONING"
            for member in members:
                self._group.launch(member, now)
        elif request.error[0] in (STOCKOUT, QUOTA_EXCEEDED):
            request.tried_next = now + self._group.launch_retry
        else:
            request.state = "FAILED"
            self._roll_back(request, now)

    def _refused(self, more: int) -> tuple[str, str] | None:
        refused = self._group.refused(more + sum(bool(member.status) for member in self._group.members))
        if refused is not None:
            return (STOCKOUT, _WAITING) if refused[0] == STOCKOUT else refused
        needs = Counter({metric: amount * more for metric, amount in self._group.needs().items()})
        exceeded = self._group.quotas.exceeded(needs)
        return (QUOTA_EXCEEDED, exceeded.message) if exceeded else None

    def _roll_back(self, request: ResizeRequest, now: float) -> None:
        self._group.delete([member.name for member in self._members(request)], now)

    def _members(self, request: ResizeRequest) -> list[Member]:
        return [member for member in self._group.members if member.request is request and not member.leaving]
