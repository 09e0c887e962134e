"""How GKE upgrades the nodes of a node pool by itself: by surge, or with a second set of groups, blue and green.

Surge, with one node more and none less ("Node upgrade strategies", max_surge 1 and max_unavailable 0): a node more
comes; an old one is cordoned and drained, for an hour at most, PodDisruptionBudgets and grace periods honoured; it
ends, and the next one's turn comes. Blue-green: as many nodes come in green groups; the blue ones are cordoned, drained
and ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.cloud.container_v1.types import NodePool

from gpu_sandbox.google.instance_groups import InstanceGroup
from gpu_sandbox.google.operations import Progress

Phase = NodePool.UpdateInfo.BlueGreenInfo.Phase


class SurgeUpgrade:
    """One group after another, one node after another."""

    def __init__(self, groups: Sequence[InstanceGroup]) -> None:
        self._left = [(group, [member.name for member in group.members if not member.leaving]) for group in groups]
        self._left = [(group, names) for group, names in self._left if names]
        self._total = sum(len(names) for _, names in self._left)
        self._draining = ""

    def begin(self, now: float) -> None:
        if self._left:
            group, _ = self._left[0]
            group.resize(group.target_size + 1, now)

    def look(self, now: float) -> Progress:
        if not self._left:
            return Progress(over=True, done=self._total, total=self._total)
        group, names = self._left[0]
        if self._draining and group.member(self._draining) is None:
            self._draining = ""
        if not self._draining and not names:
            self._left.pop(0)
            self.begin(now)
        elif not self._draining and group.stable:
            self._draining = names.pop(0)
            group.drain(self._draining, now, keeps_size=bool(names))
        return Progress(done=self._total - sum(len(names) for _, names in self._left), total=self._total)


class BlueGreenUpgrade:
    """`phase` is GKE's word for how far it is."""

    def __init__(self, *, blue: Sequence[InstanceGroup], green: Sequence[InstanceGroup]) -> None:
        self._blue, self._green = tuple(blue), tuple(green)
        self.phase = Phase.UPDATE_STARTED

    def begin(self, now: float) -> None:
        self.phase = Phase.CREATING_GREEN_POOL
        for blue, green in zip(self._blue, self._green, strict=True):
            green.resize(blue.target_size, now)

    def look(self, now: float) -> Progress:
        if self.phase == Phase.CREATING_GREEN_POOL and all(group.stable for group in self._green):
            self.phase = Phase.DRAINING_BLUE_POOL
            for group in self._blue:
                group.resize(0, now, drain=True)
        return Progress(over=self.phase == Phase.DRAINING_BLUE_POOL and not any(group.members for group in self._blue))
