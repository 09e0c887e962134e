"""GpuPodTrigger: waits for a pod, a gang or a workload in the triggerer, and explains the wait in the task's log."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.code_requests import delete_code_of_task
from airflow_gpu_provider.cluster.api.informer import connected
from airflow_gpu_provider.cluster.api.threads import in_thread
from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.ledger.ledger import record_pods
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.scaling.end.release_now import release_quietly
from airflow_gpu_provider.scaling.wait.records import Narrator, Progress, is_of_later_release
from airflow_gpu_provider.scaling.wait.retry import persistently
from airflow_gpu_provider.training.life.diagnosis import may_be_spot
from airflow_gpu_provider.training.log.object_logs import Logs
from airflow_gpu_provider.training.log.trigger_log import KeptLines
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, WaitOutcome
from airflow_gpu_provider.training.watch.gpu_sampler import GpuSampler, sampled_time
from airflow_gpu_provider.training.watch.watch_loop import cluster_access, follow, read_wait, run_kind_of
from airflow_gpu_provider.triggers.record import (
    Recorded,
    Values,
    has_returned,
    is_run_over,
    is_still_deferred,
    is_taken_over,
    runs_again,
    wait_out_airflow_72716,
)
from airflow_gpu_provider.untrusted import storable

RECORD_VERSION = 1
LONGEST_RESULT = 2**14
"""The most bytes of a result in the trigger's event, which Airflow logs and stores in its database."""
FROM_START = "(the pod's log follows from its beginning: Airflow has cleared what the triggerer had logged before)"
_RESULT_WITHIN = 10.0


class GpuPodTrigger(Recorded):
    """Waits until what an attempt runs has ended: a pod, a gang or a workload.

    Yields one event, a WaitOutcome's record. The result file is read at once, because the pod's node may be gone before
    a worker starts; its text is left out if it is longer than LONGEST_RESULT, if it could not be read, or if Airflow's
    database would refuse it. It never raises: an exception in a trigger would lose its type.

    A cluster that cannot be reached, or opened, is retried until the pod's deadline.

    The row in Airflow's database holds the pool's spec and the pod's name, and nothing secret.

    Args:
        record: Its whole state, versioned: "pool" (the spec), "kind" and "wait" (what is waited for: see read_wait),
            "owner" (who writes the groups' spec), "key" (the demand that covers the pods), "owns_demand" (that is a
            Lease of the task's own), "code_of" (the task, as its label has it, whose code is deleted; None for none),
            "holder" (for the pool's lock), "deferred_at", "delete_on_kill", "grace_seconds"
            (of that deletion; None for the pods' own), "logs" (which containers' logs are streamed; see PodLogs),
            "has_next" (another attempt follows if it is preempted: its worker gets what was logged; see KeptLines),
            "result" (the "container" and "path" of the result file), "pause" (seconds before it begins, after a
            setback) and "extra" (more entries for the event).
    """

    record_version = RECORD_VERSION

    def __init__(self, record: Values) -> None:
        super().__init__(record)
        self._connection = AsyncExitStack()
        self._api: AsyncApi | None = None
        self._logs: Logs | None = None
        self._gpus: GpuSampler | None = None
        self._own: set[str] = set()
        self._kept = KeptLines(lambda *line: self.log.log(*line))

    @cached_property
    def _pool(self) -> GpuPool:
        return deserialize_pool(self.record["pool"])

    async def _event(self) -> Values:
        wait = self._wait()
        await asyncio.sleep(self.record.get("pause") or 0.0)
        outcome = await self._outcome(wait)
        outcome = replace(outcome, logs=await self._logs_so_far())
        may_follow = bool(self.record.get("has_next")) and outcome.extended_until is None
        if may_follow and self._may_be_preempted(outcome):
            outcome = replace(outcome, lines=self._kept.packed())
        if self._gpus is not None:
            outcome = replace(outcome, gpu_use=self._gpus.use)
        return outcome.to_record()

    async def undo_if_nobody_waits(self) -> None:
        """Leave also the pod of a record of a later release: it runs, and the worker that has it waits for it."""
        if not is_of_later_release(self.record, self.record_version):
            await super().undo_if_nobody_waits()

    def _wait(self) -> AttemptWait:
        return read_wait(self.record["kind"], self.record["wait"])

    async def _outcome(self, wait: AttemptWait) -> WaitOutcome:
        report, warn = partial(self._kept.log, logging.INFO), partial(self._kept.log, logging.WARNING)
        narrator = Narrator(report, started=wait.started, is_resumed=has_returned(self.record))
        try:
            watch = partial(self._watch, wait, narrator)
            setbacks = Narrator(warn, started=wait.started)
            progress = await persistently(watch, until=wait.deadline, narrator=setbacks)
            has_succeeded = progress.done and progress.error is None
            pod = wait.pod_with_result(progress.result or {}) if has_succeeded else None
            result = await self._read_result(wait.namespace, pod) if pod else None
            return replace(WaitOutcome.of_progress(wait, progress), result=result)
        except GpuError as error:
            return WaitOutcome.of_failure(wait, error)
        except Exception as error:
            # The operator checks the pod, and has it watched again if it still runs.
            self.log.exception("The wait for %s failed", wait.name)
            failed = GpuError(f"The wait for {wait.what} failed: {error}.", "See the log above.")
            return WaitOutcome.of_failure(wait, failed)

    async def _watch(self, wait: AttemptWait, narrator: Narrator) -> Progress:
        kind, log = run_kind_of(wait), self._kept.log
        if self._api is None:
            # Kept until `cleanup`, which follows `on_kill`: that has little time, and finding a cluster takes some.
            self._api = await self._connection.enter_async_context(self._connected())
        logs = self._logs = kind.logs(self._api, self._to_stream(), log)
        if self._gpus is None:
            report, warn = partial(log, logging.INFO), partial(log, logging.WARNING)
            self._gpus = GpuSampler(self._api, wait, report=report, warn=warn)
        owner = self.record["owner"]
        async with logs, self._gpus as gpus:
            progress = await follow(kind, self._api, self._pool, logs, gpus, log, owner=owner, narrator=narrator)
            await wait_out_airflow_72716(self.record["deferred_at"])
        return progress

    def _may_be_preempted(self, outcome: WaitOutcome) -> bool:
        """Return True unless it has certainly not been: a worker asks the cloud, which may have taken its machine."""
        has_succeeded = outcome.error is None
        return not has_succeeded or (not outcome.result and may_be_spot(self._pool))

    def _to_stream(self) -> dict[str, Any] | None:
        """Return what is to be streamed: from where this trigger has got to, or the record says."""
        wanted: dict[str, Any] | None = self.record.get("logs")
        if wanted is None:
            return None
        if self._logs is not None:
            return {**wanted, "positions": self._logs.rest()["positions"], "from_start": False}
        is_from_start = bool(wanted.get("from_start")) and not is_taken_over(self.record)
        if is_from_start and wanted["containers"]:
            self._kept.log(logging.INFO, FROM_START)
        return {**wanted, "from_start": is_from_start}

    async def _logs_so_far(self) -> dict[str, Any]:
        handed = (self.record.get("logs") or {}).get("positions") or {}
        if self._logs is None:
            return {"positions": handed, "may_repeat": True}
        rest = await self._logs.safe_rest()
        return {**rest, "streamed": rest["positions"] != handed}

    async def _read_result(self, namespace: str, pod: str) -> str | None:
        where = self.record.get("result")
        if where is None or self._api is None:
            return None
        command = ["sh", "-c", f'if [ -s "$0" ]; then head -c {LONGEST_RESULT + 1} "$0"; fi', where["path"]]
        path = f"api/v1/namespaces/{namespace}/pods/{pod}"
        try:
            read = await self._api.output(path, container=where["container"], command=command, within=_RESULT_WITHIN)
            text = read.decode() if read is not None and len(read) <= LONGEST_RESULT else None
            return text if storable(text) == text else None
        except (GpuError, UnicodeDecodeError) as error:
            self.log.info("The pod's result is left to a worker: %s", error)
            return None

    async def undo(self) -> None:
        """Delete what a user or dagrun_timeout ended, unless the task still waits; release nodes that nothing else
        will.

        Airflow also calls on_kill when another triggerer takes over a healthy wait, so the task's state is checked
        first. That triggerer may have sent the event meanwhile: its worker then collects and deletes what has ended.
        The uid makes sure that a new try's pod with the same name is kept.
        """
        wait = self._wait()
        what = f"{wait.what[:1].upper()}{wait.what[1:]}"
        if await is_still_deferred(self):
            self.log.info("The task still waits for %s, elsewhere; it is left alone.", wait.what)
            return
        if not self.record["delete_on_kill"]:
            self.log.info("%s is kept (on_kill_action).", what)
            await self._release()
            return
        try:
            async with self._connected() as api:
                pods = await run_kind_of(wait).pods(api)
                if wait.has_ended(pods) and await runs_again(self):
                    self.log.info("%s has ended; the task collects it when it resumes.", what)
                    return
                grace = self.record.get("grace_seconds")
                is_deleted = await api.delete(wait.path, uid=wait.uid, grace_period_seconds=grace)
        except GpuError as error:
            self.log.error("%s could not be deleted and keeps running until its deadline: %s", what, error)
            return
        self.log.info("%s %s.", what, "is deleted" if is_deleted else "was gone already")
        self._own = {pod["metadata"]["uid"] for pod in pods}
        for pod in pods:
            await in_thread(self._note_use, pod)
        await self._release()
        if self.record.get("code_of"):
            await in_thread(self._delete_code, self.record["code_of"])

    async def _release(self) -> None:
        """Release the pod's node if no ScaleDownSensor will: the run is over, or no demand covers the pod."""
        key = DemandKey(**self.record["key"])
        try:
            async with self._connected() as api:
                is_covered = await api.get(f"{LEASES}/{key.lease_name}".lstrip("/")) is not None
            if is_covered and not self.record.get("owns_demand") and not await is_run_over(self):
                return
        except GpuError as error:
            self.log.error("Nodes of pool %s may keep running: whose they are is not known: %s", key.pool, error)
            return
        holder = f"{self.record['holder']}+trigger"
        opened = partial(open_pool, self._pool, owner=self.record["owner"], holder=holder, report=self.log.info)
        await in_thread(release_quietly, opened, key, log=self.log, own=self._own or {self._wait().uid})

    def _delete_code(self, task: str) -> None:
        """Delete the code that no pod needs any more."""
        try:
            delete_code_of_task(cluster_access(self._pool).api_client(), self._pool.name, task)
        except GpuError as error:
            self.log.error("The ConfigMaps with the task's code stay until its run is released: %s", error)

    def _note_use(self, pod: Json) -> None:
        """Record when the pod ran, and what its GPUs did, for its run's bill: no worker will do so."""
        use = self._gpus.use if self._gpus is not None else None
        record_pods(
            lambda: cluster_access(self._pool).api_client(),
            [pod],
            self.log.warning,
            computed=use.mean / 100 if use is not None and use.mean is not None else None,
            sampled=sampled_time(use) if use is not None else timedelta(),
        )

    def _connected(self) -> AbstractAsyncContextManager[AsyncApi]:
        return connected(self._pool.cluster_identity, lambda: cluster_access(self._pool))

    async def cleanup(self) -> None:
        """Close the connection to the cluster."""
        self._api = None
        await self._connection.aclose()
