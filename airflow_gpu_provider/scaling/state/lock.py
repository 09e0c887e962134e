"""PoolLock: who may change a pool now. One Lease for each pool, taken by compare-and-swap for seconds at a time.

A holder that stalls loses the lock: others take it when its record has not changed for `duration` on their own
clock, so clocks need not agree. `check` writes the record again; it can only succeed for who still holds it.

A pool's lock keeps its spec, too: which pools this package has changed in a cluster is known by it.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.cluster.api.clock import Clock, SystemClock
from airflow_gpu_provider.cluster.api.leases import list_leases, put_lease, read_lease
from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE, lease_manifest
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged
from airflow_gpu_provider.errors import DemandLockBusy, DemandLockLost, GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.times import format_time
from airflow_gpu_provider.untrusted import loads, one_line, read

log = logging.getLogger(__name__)

SPEC = "airflow-gpu-provider/spec"
_MEMO = "airflow-gpu-provider/recent-writes"
_HELD_AT_MOST = 120.0  # seconds
_LONGEST_LINE = 300  # characters
_POLL = (0.2, 0.8)  # seconds between two looks at a lock that is held; drawn, so that waiters do not march in step


class PoolLock:
    """Context manager: inside it, and until `check` says otherwise, nobody else changes the pool.

    Args:
        holder: Who takes it, for people: dag/run/task/try, host and pid.
        duration: How long others let a record stand before they take the lock from its holder.
        timeout: How long to wait for it; longer than `duration`, so that a dead holder does not fail the next.
        report: Takes one line, when the lock is held by another.
        spec: The pool's serialized spec, kept with the lock: the janitor finds forgotten pools by it.
        seen: What earlier tries saw of it, for one who tries again and again for a moment each: a dead holder's time
            then runs out all the same.

    Attributes:
        memo: What the last holder left for the next, and what this one leaves; written when the lock is given back.

    Raises:
        DemandLockBusy: It was held all the time, by others that were alive.
    """

    def __init__(
        self,
        api: ApiClient,
        pool_name: str,
        holder: str,
        *,
        duration: timedelta = timedelta(seconds=30),
        timeout: timedelta = timedelta(seconds=60),
        clock: Clock | None = None,
        report: Callable[[str], None] | None = None,
        spec: Mapping[str, Any] | None = None,
        seen: Sighting | None = None,
    ) -> None:
        self._api = api
        self._pool_name = pool_name
        self._holder = holder
        self._duration = duration.total_seconds()
        self._timeout = timeout.total_seconds()
        self._clock = clock or SystemClock()
        self._report = report
        self.memo = ""
        self._notes = {SPEC: json.dumps(spec)} if spec else {}
        self._seen = seen or Sighting()
        self._taken: dict[str, Any] = {}  # what we took it with, by which it is known as ours
        self._record: dict[str, Any] | None = None  # as last written by us; None when it is not ours
        self._written_at = 0.0
        self._taken_at = 0.0

    @property
    def name(self) -> str:
        return f"lock-{self._pool_name}"

    def __enter__(self) -> Self:
        try:
            self._wait_for_it()
        except BaseException:
            self._give_back()  # it may be ours, where only the answer to our taking it got lost
            raise
        return self

    def _wait_for_it(self) -> None:
        # Not leases.update: a lock that is held is waited for, by time; here a conflict is another's turn.
        deadline = self._clock.monotonic() + self._timeout
        while True:
            found = read_lease(self._api, self.name)
            if found is None or self._seen.is_free(found, self._clock.monotonic()):
                if self._take(found):
                    return
                continue
            if self._clock.monotonic() > deadline:
                raise self._busy(found)
            self._tell(found)
            self._clock.sleep(random.uniform(*_POLL))

    def check(self) -> None:
        """Make sure, right before a write, that the lock is still ours; it is then ours for `duration` again.

        Raises:
            DemandLockLost: This process was stalled, and another one may have the lock.
        """
        if self._record is None or self._is_old:
            raise self._lost()
        spec = {**self._record["spec"], "renewTime": format_time(self._clock.now())}
        try:
            self._write(self._record, spec)
        except ObjectChanged as error:
            raise self._lost() from error
        if self._is_old:  # stalled in this request: the pool that was looked at may be hours old, if nobody else came
            raise self._lost()

    def keep(self) -> None:
        """Renew it, when a third of its time has passed, between the steps of something long that gets ahead.

        That is done for two minutes at most, so that nobody has the lock for good.
        """
        now = self._clock.monotonic()
        if now - self._written_at > self._duration / 3 and now - self._taken_at < _HELD_AT_MOST:
            self.check()

    @property
    def _is_old(self) -> bool:
        return self._clock.monotonic() - self._written_at > self._duration

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    def _give_back(self) -> None:
        """Free the lock if it is ours, also after a check that failed: others would wait for its time to run out."""
        taken, record = self._taken, self._record
        self._taken, self._record = {}, None
        if not taken or (record is not None and self._free(record)):
            return
        # Another has it now; or a write of ours came through and its answer did not.
        try:
            found = read_lease(self._api, self.name)
            if found is None or any((found.get("spec") or {}).get(key) != value for key, value in taken.items()):
                log.info("The lock %s/%s is not ours any more, and is left alone.", DEMAND_NAMESPACE, self.name)
                return
            is_free = self._free(found)
        except GpuError:
            is_free = False
        if not is_free:
            # What was to be done under the lock is done, or has an error of its own; the record runs out by itself.
            log.warning("The lock %s/%s could not be released.", DEMAND_NAMESPACE, self.name)

    def _free(self, record: dict[str, Any]) -> bool:
        """Return True if the lock is free now, as far as is known; another holder is not disturbed."""
        spec = {key: value for key, value in record["spec"].items() if key != "holderIdentity"}
        try:
            self._write(record, spec)
        except GpuError as failed:
            log.debug("The lock %s/%s was not released: %s", DEMAND_NAMESPACE, self.name, failed)
            return False
        finally:
            self._record = None
        return True

    def _take(self, found: dict[str, Any] | None) -> bool:
        now = format_time(self._clock.now())
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(self._duration),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": found["spec"].get("leaseTransitions", 0) + 1 if found else 1,
        }
        self._taken = {key: spec[key] for key in ("holderIdentity", "acquireTime", "leaseTransitions")}
        self.memo = _memo_of(found)
        try:
            self._write(found, spec)
        except ObjectChanged:
            self._taken = {}
            return False  # another one was faster
        self._taken_at = self._written_at
        self._seen.is_reported = False
        return True

    def _write(self, before: dict[str, Any] | None, spec: dict[str, Any]) -> None:
        """Write the record if it is still `before`; the time counts from when the request was sent."""
        sent_at = self._clock.monotonic()
        notes = {**self._notes, **({_MEMO: self.memo} if self.memo else {})}
        manifest = lease_manifest(self.name, "lock", labels={POOL_LABEL: self._pool_name}, notes=notes, spec=spec)
        self._record = put_lease(self._api, manifest, before)
        self._written_at = sent_at

    def _tell(self, found: dict[str, Any]) -> None:
        if self._report and not self._seen.is_reported:
            self._report(f"waiting for the lock of pool {self._pool_name}: {_holder_of(found)} has it")
        self._seen.is_reported = True

    def _busy(self, found: dict[str, Any]) -> DemandLockBusy:
        holder = _holder_of(found)
        return DemandLockBusy(
            f"Pool {self._pool_name} is being changed by {holder} since {found['spec'].get('acquireTime')}.",
            f"It will be free soon; who holds it: kubectl -n {DEMAND_NAMESPACE} get lease {self.name}.",
            pool=self._pool_name,
            holder=holder,
        )

    def _lost(self) -> DemandLockLost:
        return DemandLockLost(
            f"{self._holder} stalled and lost the lock of pool {self._pool_name}; it has written nothing since.",
            "The next retry decides again.",
            pool=self._pool_name,
        )


def _holder_of(lease: Mapping[str, Any]) -> str:
    return one_line(str(lease["spec"].get("holderIdentity")), _LONGEST_LINE)


def read_memo(api: ApiClient, pool_name: str, *, shared: str = "") -> str:
    """Return what the last holder of a pool's lock left; empty where it left nothing, or there was none.

    `shared` as in `shared_items`.
    """
    return _memo_of(next(iter(list_leases(api, "lock", pool_name, shared=shared)), None))


def _memo_of(lease: Mapping[str, Any] | None) -> str:
    return str(((lease or {}).get("metadata", {}).get("annotations") or {}).get(_MEMO, ""))


class Sighting:
    """What a waiter has seen of a held lock: which record, since when by its own clock, and whether it reported it."""

    def __init__(self) -> None:
        self.is_reported = False
        self._version = ""
        self._since = 0.0

    def is_free(self, found: dict[str, Any], now: float) -> bool:
        """Whether nobody holds it, or its holder has let its time run out before our eyes."""
        spec = found.get("spec") or {}
        if not spec.get("holderIdentity"):
            return True
        version = found["metadata"]["resourceVersion"]
        if version != self._version:
            self._version, self._since = version, now
        return now - self._since > float(spec.get("leaseDurationSeconds", 0))


@dataclass(frozen=True, kw_only=True)
class KeptSpec:
    """What a pool's lock keeps of it.

    Attributes:
        lock: The uid of the lock's Lease: the same pool has the same, however its cluster is reached.
        text: The serialized spec of the last one who took the lock, or whatever somebody has made of it.
    """

    name: str
    lock: str
    text: str

    def pool(self) -> GpuPool:
        """Return the pool; raises NotParsed where the text is not its rendered spec."""
        return read(self.text, self._parse)

    def _parse(self, text: str) -> GpuPool:
        pool = deserialize_pool(loads(text))
        if pool.name != self.name or not pool.is_rendered:
            raise ValueError(f"it is not the rendered spec of pool {self.name}")
        return pool


def list_pool_specs(api: ApiClient) -> list[KeptSpec]:
    """Return the specs of all pools that were ever changed in the cluster and not deleted."""
    found = []
    for raw in list_leases(api, "lock"):
        metadata = raw["metadata"]
        text = (metadata.get("annotations") or {}).get(SPEC)
        if text:
            name = (metadata.get("labels") or {}).get(POOL_LABEL, "")
            found.append(KeptSpec(name=name, lock=metadata["uid"], text=text))
    return found
