"""The members of a managed instance group, and those that could not be had."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from gpu_sandbox.google.compute_operations import ComputeOperation
from gpu_sandbox.google.interface import Instance
from gpu_sandbox.google.resize_requests import ResizeRequest

Action = Literal["NONE", "CREATING", "RECREATING", "DELETING"]


@dataclass(frozen=True, kw_only=True)
class LaunchError:
    """One instance that could not be had."""

    code: str
    message: str
    instance: str
    at: float


@dataclass(kw_only=True)
class Member:
    """One managed instance. `status` is Compute Engine's, empty while there is no instance behind it."""

    name: str
    action: Action = "CREATING"
    status: str = ""
    instance_id: str = ""
    deadline: float = 0.0
    """When the present step is over; of one that has no instance, when it is tried next."""
    created_at: float = 0.0
    running_since: float | None = None
    run_ends_at: float | None = None
    """When its max_run_duration is over, in `Faults.deadline_seconds`."""
    failing_since: float | None = None
    error: LaunchError | None = None
    counted: Counter[str] = field(default_factory=Counter)
    announced: Instance | None = None
    draining_until: float | None = None
    taken_at: float | None = None
    """When a spot instance that has had its notice ends."""
    under_way: ComputeOperation | None = None
    """The operation that makes its instance, or deletes it."""
    request: ResizeRequest | None = None
    """The resize request that it came with."""

    @property
    def is_queued(self) -> bool:
        """Whether it waits for the others of its request."""
        return self.request is not None and self.request.state == "ACCEPTED"

    @property
    def leaving(self) -> bool:
        return self.action == "DELETING" or self.draining_until is not None

    @property
    def runs(self) -> bool:
        return self.status == "RUNNING"
