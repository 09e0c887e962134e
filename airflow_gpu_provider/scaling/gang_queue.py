"""The queue of a pool's gangs: looked at and moved on by those who reconcile the pool, under its lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.api_errors import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.cluster.jobs import GangJob, admit, list_gang_jobs, suspend
from airflow_gpu_provider.errors import ClusterUnreachable, DemandLockLost, GpuError
from airflow_gpu_provider.scaling.admission import Admission, admission
from airflow_gpu_provider.scaling.decisions import Decision
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


@dataclass(frozen=True, kw_only=True)
class GangNews:
    """What a look at a pool's gangs says to those who wait for one.

    Attributes:
        why: Why each gang that is suspended waits, in words, by "namespace/name".
        errors: What the cluster refused: a missing permission, say; by the gang's "namespace/name", "" for all gangs.
        said: What was done, for the log.
    """

    why: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, GpuError] = field(default_factory=dict)
    said: tuple[str, ...] = ()


class GangQueue:
    """One look at a pool's gangs. What is refused is told to those who wait for gangs, and fails no reconcile."""

    def __init__(self, api: ApiClient, snapshot: PoolSnapshot, decision: Decision) -> None:
        self._api = api
        self._now = snapshot.now
        self._errors: dict[str, GpuError] = {}
        self._said: list[str] = []
        try:
            jobs = list_gang_jobs(api, snapshot.pool.name)
        except ClusterUnreachable:
            raise
        except GpuError as error:
            self._found, self._errors = Admission(), {"": error}
        else:
            going = {machine.id for machine in (*decision.release, *decision.later)}
            leaving = {node.name for node in snapshot.nodes if node.machine in going} | {*decision.cordon}
            self._found = admission(snapshot, jobs, leaving)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self._found.is_empty

    @property
    def news(self) -> GangNews:
        return GangNews(why=self._found.why, errors=self._errors, said=tuple(self._said))

    def move_on(self, check: Callable[[], None]) -> None:
        """Admit and suspend what is to be; `check` is that of the pool's lock, which the caller holds."""
        for job in self._found.suspend:
            why = "not all of its pods found a node in time"
            self._write(check, job, partial(suspend, self._api, job), f"gang {job} is suspended again: {why}")
        for job, zone in self._found.admit:
            where = f" in {zone}" if zone else ""
            said = f"gang {job} may start: {job.size} nodes{where}"
            self._write(check, job, partial(admit, self._api, job, zone, self._now), said)

    def _write(self, check: Callable[[], None], job: GangJob, write: Callable[[], None], said: str) -> None:
        check()
        try:
            write()
        except (ObjectChanged, ObjectNotFound):
            return  # the next look decides again
        except (ClusterUnreachable, DemandLockLost):
            raise
        except GpuError as error:
            self._errors[str(job)] = error
            return
        self._said.append(said)
