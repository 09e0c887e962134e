"""GroupSource: which groups a cloud pool has, and who answers for them: this package, or somebody else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from airflow_gpu_provider.platforms.base import Group, Plan, Say
from airflow_gpu_provider.pools import Candidate


class GroupSource(ABC):
    """A pool's groups: owned ones, which this package creates and deletes, or external ones, which it only sizes."""

    @abstractmethod
    def candidates(self) -> tuple[Candidate, ...]:
        """Return where the pool can have machines, the most preferred first.

        Raises:
            PoolSpecError: The cloud offers none of the pool's machine types in its zones.
        """

    @abstractmethod
    def plan(self, nodes: int) -> Plan:
        """Answer `Platform.plan`."""

    @abstractmethod
    def apply(self, plan: Plan, say: Say, over_quota: Collection[str]) -> None:
        """Do what `Platform.apply` promises."""

    @abstractmethod
    def observe(self) -> tuple[Group, ...]:
        """Return the groups that exist, the most preferred first."""

    @abstractmethod
    def delete(self, say: Say) -> None:
        """Delete the groups that this package created."""
