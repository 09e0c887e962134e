"""A pod that writes whatever it likes, and what this package makes of it: an event, XComs and Leases.

Nothing is left out between the pod and those: GpuPodTrigger watches it on the fake API server, which here has its log
and exec too; the attempt of a worker takes the event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from airflow.triggers.base import TriggerEvent

from airflow_gpu_provider.cluster.api.leases import list_leases
from airflow_gpu_provider.cluster.model.pod_log import lines_of
from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL
from airflow_gpu_provider.errors import GpuError, PodFailed
from airflow_gpu_provider.ledger.ledger import record_pods
from airflow_gpu_provider.ledger.usage import read_runs
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.state.demand_leases import list_demand, write_demand
from airflow_gpu_provider.tasks.pool_operator import leave_error
from airflow_gpu_provider.training.life.collect import parsed
from airflow_gpu_provider.training.life.diagnosis import diagnosed
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from airflow_gpu_provider.training.log.trigger_log import KeptLines
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from airflow_gpu_provider.training.wait.gpu_use import GpuWatching
from airflow_gpu_provider.training.watch import gpu_sampler
from airflow_gpu_provider.triggers.pod import GpuPodTrigger
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.training.waiting_kinds import POD, POOL, Api, Kind, Night, shown, stamp, watching

KEY = DemandKey(installation="i", dag_id="nightly", run_id="r", pool=POOL.name)
_SIDECAR, _PIECE = "airflow-xcom-sidecar", 4096
_CONTAINER = {"name": "base", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
_OWNED = {"labels": {RUN_LABEL: KEY.hash}, "annotations": KEY.annotations}
_PATIENCE = 20.0
_UNHEARD = logging.getLogger(f"{__name__}.unheard")
_UNHEARD.setLevel(logging.CRITICAL)  # pytest keeps what is logged: of 10,000 pods, gigabytes


@dataclass(frozen=True, kw_only=True)
class Writes:
    """What a pod writes.

    Attributes:
        result: Its result file.
        gpus: What `nvidia-smi` in its container prints, one time after the other.
        log: Its log, without the kubelet's times.
        message: Its termination message, which its container's state has.
        reason: Of that state, of a condition and of an event: other controllers write those.
        exit_code: Of its container.
        hangs: Whether the wait ends as it prints nothing for a moment.
    """

    result: bytes = b""
    gpus: Sequence[bytes] = ()
    log: bytes = b""
    message: str = ""
    reason: str = "Completed"
    exit_code: int = 0
    hangs: bool = False


class _Socket:
    """An exec's WebSocket: what the command prints, and that it has succeeded."""

    def __init__(self, printed: bytes) -> None:
        self._printed = printed

    async def __aenter__(self) -> _Socket:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def close(self, **_: Any) -> None:
        """Nothing is open."""

    async def __aiter__(self) -> AsyncIterator[SimpleNamespace]:
        for start in range(0, len(self._printed), _PIECE):
            yield SimpleNamespace(data=b"\x01" + self._printed[start : start + _PIECE])
        yield SimpleNamespace(data=b'\x03{"status": "Success"}')


class _Log:
    """The answer to a request for a log."""

    status, reason = 200, ""
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self, text: bytes, at: str, heard: Callable[[], None]) -> None:
        self.content = self
        self._lines = [f"{at} ".encode() + line + b"\n" for line in text.split(b"\n")] if text else []
        self._heard = heard

    async def __aenter__(self) -> _Log:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def iter_any(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield line
        self._heard()


class _Api(Api):
    """It has the pod's log and exec, too."""

    def __init__(self, night: Night, writes: Writes, heard: asyncio.Event, asked: asyncio.Event) -> None:
        super().__init__(night)
        self._writes, self._to_print = writes, [*writes.gpus]
        self._heard, self._asked = heard, asked
        if not self._to_print:
            asked.set()

    async def _send_as(self, shown: Any, method: str, path: str, headers: Any, options: Any) -> Any:
        if path.endswith("/log"):
            await asyncio.sleep(0)
            return _Log(self._writes.log, stamp(self.server.now()), self._heard.set)
        return await super()._send_as(shown, method, path, headers, options)

    async def _opened_as(self, shown: Any, path: str, params: Any) -> Any:
        if ("container", _SIDECAR) in params:
            return _Socket(self._writes.result)
        if len(self._to_print) == 1:
            self._asked.set()
        return _Socket(self._to_print.pop(0) if len(self._to_print) > 1 else self._to_print[0])


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of a pod once it has ended: the event of its trigger, as JSON; the pod; its cluster."""

    event: dict[str, Any]
    pod: dict[str, Any]
    server: ApiServer
    writes: Writes


def watched(writes: Writes, kind: Kind = POD) -> Seen:
    """Have a trigger watch a pod that writes this, or several, and that ends once all of it is read."""
    return asyncio.run(_watched(writes, kind))


async def _watched(writes: Writes, kind: Kind) -> Seen:
    night, heard, asked = Night(kind), asyncio.Event(), asyncio.Event()
    api = _Api(night, writes, heard, asked)

    with watching(lambda: api) as patched:
        patched.setattr(gpu_sampler, "SAMPLE_EVERY", 0.0)
        patched.setattr(gpu_sampler, "_UNTIL_THE_END_SHOWS", 0.0)
        night.start()
        for pod in kind.pods:
            night.server.patch(pod, {"metadata": _OWNED, "spec": {"containers": [_CONTAINER]}})
        trigger = _trigger(writes, kind)

        def log(level: int, message: str, *args: object) -> None:
            if "cannot be sampled" in str(message % args if args else message):
                asked.set()

        trigger._kept = KeptLines(log)
        async with asyncio.timeout(_PATIENCE):
            told = asyncio.ensure_future(anext(trigger.run()))
            read = asyncio.gather(heard.wait(), asked.wait())
            await asyncio.wait({told, read}, return_when=asyncio.FIRST_COMPLETED)
            _end(night, writes)
            event: TriggerEvent = await told
            read.cancel()
            with suppress(asyncio.CancelledError):
                await read
    return Seen(event=event.payload, pod=night.server.read(kind.pods[0]), server=night.server, writes=writes)


def _trigger(writes: Writes, kind: Kind) -> GpuPodTrigger:
    wait = replace(kind.wait, gpus=GpuWatching() if writes.gpus else None, hang_seconds=0.001 if writes.hangs else None)
    return GpuPodTrigger(
        {
            "version": 1,
            "pool": POOL.serialize(),
            "kind": wait.run_kind,
            "wait": wait.to_record(),
            "owner": "i/nightly",
            "key": asdict(KEY),
            "holder": "i/nightly",
            "deferred_at": 0.0,
            "delete_on_kill": True,
            "logs": {"containers": ["base"], "with_name": True, "masked": {}, "positions": {}},
            "has_next": True,
            "result": {"container": _SIDECAR, "path": "/airflow/xcom/return.json"},
        }
    )


def _end(night: Night, writes: Writes) -> None:
    """Have the containers end, and their nodes' kubelets and an operator write about it."""
    at, said = stamp(night.clock.now()), {"reason": writes.reason, "message": writes.message}
    end = {"exitCode": writes.exit_code, "startedAt": at, "finishedAt": at}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": at, **said}
    night.end()
    for path in night.kind.pods:
        pod = night.server.read(path)
        name = pod["metadata"]["name"]
        about = {"kind": "Pod", "namespace": "ml", "name": name, "uid": pod["metadata"]["uid"]}
        event = {"metadata": {"name": name, "namespace": "ml"}, "involvedObject": about, "type": "Warning", **said}
        night.server.put(f"api/v1/namespaces/ml/events/{name}", {**event, "lastTimestamp": at})
        status = {
            "phase": "Failed" if writes.exit_code else "Succeeded",
            "containerStatuses": [shown({"terminated": {**end, **said}})],
            "conditions": [*pod["status"]["conditions"], ready],
            **said,
        }
        night.server.patch(path, {"status": status})


# -- what the worker makes of it -----------------------------------------------------------------------------


def xcoms(seen: Seen) -> dict[str, Any]:
    """Return the XComs of a task that gets the event: how it went, its result, and its error."""
    pushed: dict[str, Any] = {}

    def pushed_by_name(*, key: str, value: Any) -> None:
        pushed[key] = value

    outcome = WaitOutcome.from_record(seen.event)
    attempt = PodAttempt.__new__(PodAttempt)
    attempt._host = cast("Any", SimpleNamespace(push=pushed.__setitem__))
    attempt._cluster = cast(
        "Any",
        SimpleNamespace(pods=SimpleNamespace(note_computed=lambda *_, **__: None), pool=POOL, now=seen.server.now),
    )
    attempt._settings = cast("Any", SimpleNamespace(multiple_outputs=True))
    attempt.record = cast("Any", SimpleNamespace(number=1))
    attempt.log = _UNHEARD
    attempt._tell(outcome, [])
    end = outcome.end(PodState.parse(seen.pod, "base"), seen.server.now())
    error = end.error if end is not None else outcome.error
    if type(error) is PodFailed:
        lines = lines_of(seen.writes.log.decode(errors="replace"))
        error = diagnosed(error, lines, pool=POOL, node="n0", bad_gpu="")
    try:
        if outcome.result is not None:
            attempt._push_result_of_failed(parsed(outcome.result, pod=outcome.name, succeeded=error is None))
    except GpuError as invalid:
        error = error or invalid
    if error is not None:
        leave_error(SimpleNamespace(task_id="train", map_index=-1, xcom_push=pushed_by_name), error)
    return pushed


def leases(seen: Seen, reason: str) -> list[dict[str, Any]]:
    """Return the Leases that have to do with the pod: its run's ledger, and its demand, which lasts for a reason."""
    api, now, hour = cast("Any", FakeApiClient(seen.server)), seen.server.now(), timedelta(hours=1)
    use, troubles = WaitOutcome.from_record(seen.event).gpu_use, list[str]()
    computed = use.mean / 100 if use.mean is not None else None
    record_pods(lambda: api, [seen.pod], troubles.append, now=lambda: now + hour, computed=computed, sampled=hour)
    assert not troubles
    demand = DemandLease(key=KEY, nodes=1, until=now + hour, created_at=now, extended=reason)
    write_demand(api, demand, check=lambda: None)
    (run,), (wanted,) = read_runs(api, POOL.name), list_demand(api)
    assert (run.key, wanted.key) == (KEY, KEY)
    assert (computed is None) == (not run.computed)
    return [*list_leases(api, "demand"), *list_leases(api, "usage")]
