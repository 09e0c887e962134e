"""How long cluster-autoscaler takes for what, by its own defaults, optionally all faster by one factor."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, kw_only=True)
class AutoscalerTimings:
    """cluster-autoscaler 1.36's default flags, in seconds."""

    scan_interval: float = 10.0
    new_gpu_pod: float = 30.0
    """While all pods that wait are younger, nothing grows: others may be about to come."""
    new_pod: float = 2.0
    group_cache: float = 60.0
    """How long groups, their sizes and machines are taken to be as they were last seen; AWS's and GCE's refresh."""
    unneeded: float = 600.0
    unready: float = 1200.0
    """As `unneeded`, of a node that is not ready."""
    delay_after_add: float = 600.0
    node_delete_delay: float = 5.0
    """From the taint on an empty node to the end of its machine."""
    provision_timeout: float = 900.0
    acceptance: float = 120.0
    """A ProvisioningRequest that no group takes for so long fails."""
    booking: float = 600.0
    """For so long pods may start on the nodes of a ProvisioningRequest."""
    first_backoff: float = 300.0
    longest_backoff: float = 1800.0
    backoff_reset: float = 10800.0
    """A group that failed so long ago begins with the first backoff again."""
    speed: float = 1.0
    """What the above were divided by, and what durations in the tags of groups are divided by too."""

    def scaled(self, speed: float) -> AutoscalerTimings:
        """All of it `speed` times as quick. ValueError unless that is a number above 0."""
        if not 0 < speed < float("inf"):
            raise ValueError(f"a speed is a number above 0; not {speed!r}")
        seconds = {field.name: getattr(self, field.name) / speed for field in fields(self) if field.name != "speed"}
        return replace(self, **seconds, speed=self.speed * speed)


SANDBOX_SPEED = 20.0
"""A GPU pod is looked at after 1.5 s, an idle node goes after 30 s."""
