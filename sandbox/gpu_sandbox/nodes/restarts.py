"""When a container is started again, and how long after it ended: the kubelet's rules, without its clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INITIAL_DELAY = 10.0
LONGEST_DELAY = 300.0


def should_restart(container: Mapping[str, Any], pod_policy: str, exit_code: int, *, is_init: bool) -> bool:
    """Whether a container that ended with exit_code is started again.

    An init container under Always is repeated only while it fails; a container's own policy and rules win.
    """
    for rule in container.get("restartPolicyRules") or ():
        if _rule_fits(rule, exit_code):
            return True
    own = container.get("restartPolicy")
    policy = own or pod_policy
    if policy == "Always" and is_init and not own:
        policy = "OnFailure"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _rule_fits(rule: Mapping[str, Any], exit_code: int) -> bool:
    codes = rule.get("exitCodes") or {}
    inside = exit_code in (codes.get("values") or ())
    return rule.get("action") == "Restart" and inside == (codes.get("operator") == "In")


@dataclass
class BackOff:
    """One container's crash back-off (or one image's pull back-off): none at first, then 10 s doubling to 5 min.

    It starts anew when twice the longest delay has passed without an end.
    """

    delay: float = 0.0
    counted_at: float = float("-inf")

    def after_end(self, ended_at: float) -> float:
        """Seconds to wait after an end at ended_at (any monotonic clock) before the next start."""
        if ended_at - self.counted_at > 2 * LONGEST_DELAY:
            self.delay = 0.0
        wait = self.delay
        self.delay = min(2 * self.delay, LONGEST_DELAY) if self.delay else INITIAL_DELAY
        self.counted_at = ended_at
        return wait


def go_duration(seconds: float) -> str:
    """A duration as Go prints it: 10s, 1m20s, 5m0s."""
    whole = int(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60}s"
