"""PodDeadlines: when a task's pod must have ended, whichever of its bounds comes first."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.clock import Clock
from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.pools.run_budget import Budget
from airflow_gpu_provider.scaling.state.demand import DemandLease, list_demand

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class PodDeadlines:
    """The bounds of a task's pods.

    Attributes:
        api: Reads the run's demand.
        clock: The cluster's clock, which all of these times use.
        key: The run's demand, whose end counts if it has one: of its time, or of its money.
        max_runtime: Counts from the pod's creation if the run has no demand.
        execution_timeout: The task's, None for none; counts from `started_at`, the start of the try by Airflow's clock.
        at_latest: The deadline of the try's first pod, for those that follow it.
    """

    api: ApiClient
    clock: Clock
    key: DemandKey
    max_runtime: timedelta
    execution_timeout: timedelta | None
    started_at: datetime | None
    at_latest: datetime | None = None
    _leases: tuple[DemandLease, ...] | None = field(default=None, init=False)

    def of_pod(self, created_at: datetime) -> datetime:
        """Return when a pod created at that time must have ended."""
        deadline = self._demand_until() or created_at + self.max_runtime
        if self.execution_timeout is not None and self.started_at is not None:
            deadline = min(deadline, self.clock.of_local(self.started_at + self.execution_timeout))
        return deadline if self.at_latest is None else min(deadline, self.at_latest)

    @property
    def is_covered(self) -> bool:
        """Whether the run wants nodes of the pool, through a Lease that a ScaleDownSensor will withdraw."""
        return self._demand_until() is not None

    @property
    def budget(self) -> Budget | None:
        """The money of the run, if its nodes are wanted until that is used; None if something else ends them."""
        own = self.own_demand
        return own.budget if own is not None and own.ends_by_budget else None

    @property
    def is_wanted(self) -> bool:
        """Whether any run, this one or another, wants nodes of the pool."""
        return any(lease.live(self.clock.now()) for lease in self._demand())

    @property
    def own_demand(self) -> DemandLease | None:
        """The run's demand; None if it has none."""
        return next((lease for lease in self._demand() if lease.key == self.key), None)

    def _demand_until(self) -> datetime | None:
        return own.pods_end_by if (own := self.own_demand) is not None else None

    def _demand(self) -> tuple[DemandLease, ...]:
        if self._leases is None:
            try:
                self._leases = list_demand(self.api, self.key.pool)
            except PermissionDenied as error:
                _log.warning("The run's own deadline is not known: %s", error)
                return ()  # for now: the refusal may be transient
        return self._leases
