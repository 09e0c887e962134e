"""GpuPodTrigger: waits for a pod in the triggerer, by the shared watch, and explains the wait in the task's log."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.clock import ServerClock
from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.cluster.informer import connected
from airflow_gpu_provider.cluster.leases import LEASES
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.cluster.threads import in_thread
from airflow_gpu_provider.cluster.usage import record_pods
from airflow_gpu_provider.errors import GpuError, PodPreempted
from airflow_gpu_provider.pods.end import end_of
from airflow_gpu_provider.pods.followed_log import LAST_WORDS_WITHIN, PodLogs
from airflow_gpu_provider.pods.gpu_sampler import GpuSampler, PodSampler, each
from airflow_gpu_provider.pods.wait import PodWait
from airflow_gpu_provider.pods.watch import cluster_access, watch_pod
from airflow_gpu_provider.pools import deserialize_pool
from airflow_gpu_provider.records import handed_back, is_of_later_release
from airflow_gpu_provider.scaling.open_pool import open_pool
from airflow_gpu_provider.scaling.release_without_sensor import release_without_sensor
from airflow_gpu_provider.scaling.setbacks import persistently
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.scaling.waits import Progress
from airflow_gpu_provider.triggers.deferral_delay import has_returned, settle
from airflow_gpu_provider.triggers.shielded import run_shielded
from airflow_gpu_provider.triggers.task_state import goes_on, is_run_over, is_still_deferred
from airflow_gpu_provider.workloads.logs import GangLogs

RECORD_VERSION = 2
"""1: without `key` and `holder`; such a row leaves a run's nodes to its ScaleDownSensor, whatever happens."""
LONGEST_RESULT = 2**14
"""How many bytes a result may have to travel in the trigger's event, which Airflow logs and keeps in its database."""
_RESULT_WITHIN = 10.0


class GpuPodTrigger(BaseTrigger):
    """Waits until a pod's base container has ended.

    Yields one event for GpuPodOperator.trigger_reentry: `status` ("success", "failed": its container has ended;
    "timeout": it is given up; "error": it could not be watched), `name`, `namespace`, `uid`, `wait`, `message`,
    `error` (a GpuError's record or None), `timeline`, `machine`, `logs` (PodLogs.safe_rest) and `result`, the text of
    the result file: read at once, for the pod's node may be gone before a worker comes; None where it is longer than
    LONGEST_RESULT, or could not be read. And `gpu_use`, a GpuUse's record. It never raises: what an exception in a
    trigger becomes has lost its type.

    A cluster that cannot be reached, or opened, is tried again until the pod's deadline. A record of a later release is
    handed back to a worker, which goes on with the same pod: see `records`.

    The row in Airflow's database holds the pool's spec and the pod's name, and nothing secret.

    Args:
        record: Its whole state, versioned: "pool" (the spec), "wait" (PodWait's record), "owner" (who writes the
            groups' spec), "key" (the demand that covers the pod), "owns_demand" (that is a
            Lease of the task's own), "holder" (for the pool's lock), "deferred_at",
            "delete_on_kill", "grace_seconds" (of that deletion; None for the pod's own), "logs" (which containers' logs
            are streamed; see PodLogs), "result" (the "container" and "path" of the pod's result file), "pause" (seconds
            before it begins, after a setback) and "extra" (more entries for the event).
    """

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record
        self._connection = AsyncExitStack()
        self._api: AsyncApi | None = None
        self._logs: PodLogs | GangLogs | None = None
        self._gpus: GpuSampler | None = None
        self._own: set[str] = set()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"record": self.record}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the pod's end and yield it."""
        if is_of_later_release(self.record, RECORD_VERSION):
            await settle(self.record["deferred_at"])
            event = {**(self.record.get("extra") or {}), **handed_back(self.record, RECORD_VERSION)}
            yield TriggerEvent(event)  # type: ignore[no-untyped-call]
            return
        wait = self._wait()
        await asyncio.sleep(self.record.get("pause") or 0.0)
        event = await self._event(wait)
        await settle(self.record["deferred_at"])
        extra = {**(self.record.get("extra") or {}), "logs": await self._logs_so_far()}
        if self._gpus is not None:
            extra["gpu_use"] = self._gpus.use.to_record()
        about = {"name": wait.name, "namespace": wait.namespace, "uid": wait.uid, "wait": self.record["wait"]}
        yield TriggerEvent({**about, **event, **extra})  # type: ignore[no-untyped-call]

    def _wait(self) -> PodWait:
        return PodWait.from_record(self.record["wait"])

    async def _event(self, wait: PodWait) -> dict[str, Any]:
        narrator = Narrator(self.log.info, started=wait.started, goes_on=has_returned(self.record))
        try:
            watch = partial(self._watch, wait, narrator)
            setbacks = Narrator(self.log.info, started=wait.started)
            progress = await persistently(watch, until=wait.deadline, narrator=setbacks)
            pod = self._pod_of_result(wait, progress) if progress.error is None else None
            result = await self._read_result(wait.namespace, pod) if pod else None
            return {**_event(progress), "result": result}
        except GpuError as error:
            return {"status": "error", "message": str(error), "error": error.to_record()}
        except Exception as error:
            # The operator looks at the pod, and has it watched again where it still runs.
            self.log.exception("The wait for %s failed", wait.name)
            return {"status": "error", "message": str(error), "stack_trace": traceback.format_exc()}

    async def _watch(self, wait: PodWait, narrator: Narrator) -> Progress:
        pool = deserialize_pool(self.record["pool"])
        if self._api is None:
            # Held until `cleanup`, which comes after `on_kill`: that has little time, and finding a cluster takes some.
            self._api = await self._connection.enter_async_context(self._connected())
        wanted = self.record.get("logs")
        if wanted is not None and self._logs is not None:
            wanted = {**wanted, "positions": self._logs.rest()["positions"]}
        logs = self._logs = PodLogs(self._api, wait, wanted, self.log.log)
        gpus = self._gpus = self._gpus or PodSampler(self._api, wait, say=self.log.info, warn=self.log.warning)
        async with logs, gpus:
            on_pod = each(logs.follow, gpus.follow)
            watching = watch_pod(pool, wait, owner=self.record["owner"], narrator=narrator, on_pod=on_pod)
            progress = await gpus.beside(watching)
            await settle(self.record["deferred_at"])
            if isinstance(progress.error, PodPreempted):  # its log may be gone before a worker can read it
                await logs.drain(LAST_WORDS_WITHIN)
        return progress

    async def _logs_so_far(self) -> dict[str, Any]:
        if self._logs is not None:
            return await self._logs.safe_rest()
        return {"positions": (self.record.get("logs") or {}).get("positions") or {}, "may_repeat": True}

    def _pod_of_result(self, wait: PodWait, progress: Progress) -> str | None:
        return wait.name

    async def _read_result(self, namespace: str, pod: str) -> str | None:
        where = self.record.get("result")
        if where is None or self._api is None:
            return None
        command = ["sh", "-c", f'if [ -s "$0" ]; then head -c {LONGEST_RESULT + 1} "$0"; fi', where["path"]]
        path = f"api/v1/namespaces/{namespace}/pods/{pod}"
        try:
            read = await self._api.output(path, container=where["container"], command=command, within=_RESULT_WITHIN)
            return read.decode() if read is not None and len(read) <= LONGEST_RESULT else None
        except (GpuError, UnicodeDecodeError) as error:
            self.log.info("The pod's result is left to a worker: %s", error)
            return None

    async def on_kill(self) -> None:
        """Delete the pod of a task that a user ended, or dagrun_timeout; release nodes that nobody else will."""
        await run_shielded(self._delete_pod())

    async def _delete_pod(self) -> None:
        """Delete the pod, unless the task still waits for it.

        Airflow calls on_kill too when another triggerer takes over a healthy wait, so the task's state is asked first.
        That one may have sent the event meanwhile: what has ended is then its worker's to collect, and to delete.
        The uid makes sure that a new try's pod of the same name stays.
        """
        wait = self._wait()
        if await is_still_deferred(self):
            self.log.info("The task still waits for pod %s, elsewhere; it is left alone.", wait.name)
            return
        if not self.record["delete_on_kill"]:
            self.log.info("Pod %s is kept, as on_kill_action says.", wait.name)
            await self._release()
            return
        path = f"api/v1/namespaces/{wait.namespace}/pods/{wait.name}"
        try:
            async with self._connected() as api:
                last = await api.get(path)
                if last and end_of(PodState.parse(last, wait.base_container)) and await goes_on(self):
                    self.log.info("Pod %s has ended; the task that goes on collects it.", wait.name)
                    return
                is_deleted = await api.delete(path, uid=wait.uid, grace_period_seconds=self.record.get("grace_seconds"))
        except GpuError as error:
            self.log.error("Pod %s could not be deleted, and runs until its deadline: %s", wait.name, error)
            return
        self.log.info("Pod %s %s.", wait.name, "is deleted" if is_deleted else "was gone already")
        if is_deleted and last:
            await in_thread(self._note_use, last)
        await self._release()

    async def _release(self) -> None:
        """Release the pod's node where no ScaleDownSensor will: the run is over, or no demand covers the pod."""
        if "key" not in self.record:
            return
        key = DemandKey(**self.record["key"])
        try:
            async with self._connected() as api:
                is_covered = await api.get(f"{LEASES}/{key.lease_name}".lstrip("/")) is not None
            if is_covered and not self.record.get("owns_demand") and not await is_run_over(self):
                return
            await in_thread(self._release_unattended, key)
        except GpuError as error:
            self.log.error("Nodes of pool %s that nobody wants may stay for now: %s", key.pool, error)

    def _release_unattended(self, key: DemandKey) -> None:
        pool = deserialize_pool(self.record["pool"])
        holder = f"{self.record['holder']}+trigger"
        reconciler = open_pool(pool, owner=self.record["owner"], holder=holder, say=self.log.info)
        own = self._own or {self._wait().uid}
        release_without_sensor(reconciler, key, own=own, say=self.log.info)

    def _note_use(self, pod: dict[str, Any]) -> None:
        """Write down when the pod ran, for its run's bill."""
        name = pod["metadata"]["name"]
        try:
            api = cluster_access(deserialize_pool(self.record["pool"])).api_client()
            record_pods(api, [Pod.parse(pod)], ServerClock(api).now())
        except GpuError as error:
            self.log.warning("When pod %s ran could not be written down for the run's bill: %s", name, error)

    def _connected(self) -> AbstractAsyncContextManager[AsyncApi]:
        pool = deserialize_pool(self.record["pool"])
        return connected(pool.cluster_identity, lambda: cluster_access(pool))

    async def cleanup(self) -> None:
        """Let go of the cluster's connection."""
        await self._connection.aclose()


def _event(progress: Progress) -> dict[str, Any]:
    result = dict(progress.result or {})
    has_ended = result.pop("container_ended", False)
    if progress.error is None:
        return {"status": "success", "message": "", "error": None, **result}
    given_up = "error" if progress.result is None else "timeout"
    status = "failed" if has_ended else given_up
    return {"status": status, "message": str(progress.error), "error": progress.error.to_record(), **result}
