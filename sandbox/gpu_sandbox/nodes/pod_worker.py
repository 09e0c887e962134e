"""The life of one pod on one node: admission, volumes, init containers, containers, end, deletion."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gpu_sandbox.nodes import clock, environment, hostnames, resource_claims, status, volumes, waits
from gpu_sandbox.nodes.api import STRATEGIC_MERGE_PATCH
from gpu_sandbox.nodes.container import ContainerRunner, PodHome
from gpu_sandbox.nodes.errors import ApiError, ContainerStartError
from gpu_sandbox.nodes.machine import Machine
from gpu_sandbox.nodes.node import HOST_IP, Node

VOLUME_RETRY_SECONDS = 1.0
SANDBOX_RETRY_SECONDS = 10.0
TOGETHER_SECONDS = 0.003
FORCED_GRACE_SECONDS = 2.0
_DEADLINE = status.Verdict(
    phase="Failed",
    reason="DeadlineExceeded",
    message="Pod was active on the node longer than the specified deadline",
)
_SHUTDOWN = status.Verdict(
    phase="Failed",
    reason="Terminated",
    message="Pod was terminated in response to imminent node shutdown.",
    disruption="TerminationByKubelet",
)
_LOST = "The container could not be located when the pod was terminated"
log = logging.getLogger(__name__)


class PodWorker:
    """Keeps one pod; run() lasts until the pod's object is gone from the API, or the node is."""

    def __init__(self, pod: Mapping[str, Any], node: Node, machine: Machine, *, pod_ip: str) -> None:
        self.pod = pod
        self.node = node
        self._machine = machine
        self._api = machine.api
        self._began = clock.now()
        metadata = pod["metadata"]
        self.uid: str = metadata["uid"]
        self.key = (metadata["namespace"], metadata["name"])
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._folder = machine.work_dir / "pods" / self.uid
        self._home = PodHome(
            machine=machine,
            node=node,
            pod=pod,
            folder=self._folder,
            facts=environment.Facts(
                pod_ip=pod_ip, host_ip=HOST_IP, node_name=node.name, node_allocatable=node.allocatable()
            ),
            changed=self._mark_changed,
            volumes={},
        )
        self.runners = _runners(pod, self._home)
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._reported: dict[str, Any] = dict(pod.get("status") or {})
        self._sandbox_ready = False
        self._all_stopped = asyncio.Event()
        self._verdict: status.Verdict | None = None
        self._tmpfs: list[str] = []
        self._grace_moved = asyncio.Event()
        self._spec_moved = asyncio.Event()
        self._shutdown = asyncio.Event()
        self._most_grace = float("inf")

    # What others tell it -------------------------------------------------------------------------------------

    def update(self, pod: Mapping[str, Any]) -> None:
        """The pod's object has changed in the API."""
        self.pod = self._home.pod = pod
        self._spec_moved.set()
        if pod["metadata"].get("deletionTimestamp"):
            self._stop.set()
            self._grace_moved.set()

    def removed(self) -> None:
        """The pod's object is gone from the API: by force, unless this worker deleted it itself."""
        self._gone.set()
        self._stop.set()
        self._grace_moved.set()

    def shut_down(self, seconds: float) -> None:
        """The machine shuts down: the pod is stopped, with at most so many seconds of grace, and has failed."""
        self._most_grace = seconds
        self._shutdown.set()

    async def abandon(self) -> None:
        """The node is lost: everything dies at once and nothing is reported."""
        self._gone.set()
        self._task.cancel()
        await asyncio.wait([self._task])
        await asyncio.gather(*(runner.destroy() for runner in self.runners))
        await self._clean_up()

    def runner(self, container: str) -> ContainerRunner | None:
        """The runner of a container, None when the pod has no such container."""
        return next((r for r in self.runners if r.name == container), None)

    # Its life ------------------------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Begin, in a task of its own."""
        self._task = asyncio.create_task(self._run(), name=f"pod {self._home.title}")
        return self._task

    async def _run(self) -> None:
        if self.pod["metadata"].get("deletionTimestamp"):
            self._stop.set()
        if (self.pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            await self._await_deletion()
            return
        refusal = self.node.admit(self.pod)
        if refusal is not None:
            await self._reject(*refusal)
            await self._await_deletion()
            return
        reporter = asyncio.create_task(self._report())
        try:
            await self._live_until_stopped()
            self.node.release(self.uid)
            self._all_stopped.set()
            self._mark_changed()
            await reporter
        finally:
            await waits.cancel(reporter)
        await self._await_deletion()

    async def _live_until_stopped(self) -> None:
        life = asyncio.create_task(self._live())
        deadline = asyncio.create_task(self._deadline())
        try:
            await waits.first(life, deadline, events=[self._stop, self._shutdown])
            if life.done():
                life.result()
                return
            if deadline.done():
                self._verdict = _DEADLINE
                self._machine.events.about_pod(self.pod, "Normal", _DEADLINE.reason, _DEADLINE.message)
            elif self._shutdown.is_set() and not self._stop.is_set():
                self._verdict = _SHUTDOWN
        finally:
            await waits.cancel(life, deadline)
        await self._terminate()

    async def _live(self) -> None:
        self._first_states()
        self._mark_changed()
        await self._set_up_volumes()
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._set_up_sandbox()
        self._sandbox_ready = True
        if not await self._initialize():
            return
        running = []
        for runner in self.runners:
            if not runner.record.is_init:
                running.append(runner.start())
                await runner.tried.wait()
        self._home.all_tried.set()
        await _finished(running)
        await self._stop_sidecars()

    async def _initialize(self) -> bool:
        """Run the init containers in their order; False when one failed for good."""
        for runner in self.runners:
            if not runner.record.is_init:
                continue
            task = runner.start()
            if runner.record.is_sidecar:
                await runner.running_or_done.wait()
                continue
            await _finished([task])
            if runner.record.state.get("terminated", {}).get("exitCode") != 0:
                await self._stop_sidecars()
                return False
        return True

    def _first_states(self) -> None:
        reason = "PodInitializing" if any(r.record.is_init for r in self.runners) else "ContainerCreating"
        for runner in self.runners:
            runner.record.state = status.waiting(reason)

    async def _set_up_volumes(self) -> None:
        around = volumes.Surroundings(
            folder=self._folder / "volumes",
            node_folder=self.node.folder,
            facts=self._home.facts,
            lookup=self._home.lookup,
            persistent_volume=lambda claim: self._machine.persistent_volume(self.key[0], claim),
            token=lambda source: self._machine.token(self.pod, source),
            mount_tmpfs=self._mount_tmpfs,
        )
        while True:
            try:
                self._home.volumes = await volumes.set_up(self.pod, around)
                return
            except (volumes.VolumeError, ApiError) as error:
                self._machine.events.about_pod(self.pod, "Warning", "FailedMount", str(error))
            await asyncio.sleep(VOLUME_RETRY_SECONDS)

    async def _set_up_sandbox(self) -> None:
        """What a kubelet does between a pod's volumes and its first container: its claims' devices, and its names."""
        while True:
            try:
                await resource_claims.prepare(self._api, self.pod)
                _ = self._home.kernel_name
                break
            except resource_claims.ClaimNotPrepared as error:
                self._machine.events.about_pod(self.pod, "Warning", "FailedPrepareDynamicResources", str(error))
            except hostnames.NameTooLong as error:
                problem = f"Failed to create pod sandbox: {error}"
                self._machine.events.about_pod(self.pod, "Warning", "FailedCreatePodSandBox", problem)
            await asyncio.sleep(SANDBOX_RETRY_SECONDS)
        self._machine.names.keep(self._home.hosts_file, self.pod, self._home.facts.pod_ip)

    async def _mount_tmpfs(self, path: str, options: str) -> None:
        if path not in self._tmpfs:
            await self._machine.launcher.mount_tmpfs(path, options)
            self._tmpfs.append(path)

    async def _deadline(self) -> None:
        while True:
            seconds = self.pod["spec"].get("activeDeadlineSeconds")
            left = float("inf") if seconds is None else seconds - (clock.now() - self._began).total_seconds()
            if left <= 0:
                return
            self._spec_moved.clear()
            await waits.event(self._spec_moved, timeout=None if left == float("inf") else left)

    # Its end -------------------------------------------------------------------------------------------------

    def _grace(self) -> float:
        metadata = self.pod["metadata"]
        if self._gone.is_set():
            return FORCED_GRACE_SECONDS
        if metadata.get("deletionTimestamp") and metadata.get("deletionGracePeriodSeconds") is not None:
            return min(float(metadata["deletionGracePeriodSeconds"]), self._most_grace)
        return min(float(self.pod["spec"].get("terminationGracePeriodSeconds", 30)), self._most_grace)

    async def _terminate(self) -> None:
        """Stop all containers within the grace period, which a second delete may shorten meanwhile."""
        stopping = asyncio.create_task(self._stop_all())
        while not stopping.done():
            self._grace_moved.clear()
            await waits.first(stopping, events=[self._grace_moved])
            for runner in self.runners:
                runner.hasten(self._grace())
        stopping.result()
        for runner in self.runners:
            _settle_unfinished(runner.record)

    async def _stop_all(self) -> None:
        mains = [r for r in self.runners if not r.record.is_sidecar and r.task is not None]
        await asyncio.gather(*(runner.stop(self._grace()) for runner in mains))
        await self._stop_sidecars()

    async def _stop_sidecars(self) -> None:
        for runner in reversed(self.runners):
            if runner.record.is_sidecar and runner.task is not None:
                await runner.stop(self._grace())

    async def _await_deletion(self) -> None:
        await self._stop.wait()
        if not self._gone.is_set():
            await self._api.delete(self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}})
            await self._gone.wait()
        await self._clean_up()

    async def _clean_up(self) -> None:
        self.node.release(self.uid)
        self._machine.names.forget(self.uid)
        for path in self._tmpfs:
            with suppress(ContainerStartError):  # the zygote has gone, and its mounts with it
                await self._machine.launcher.unmount(path)
        shutil.rmtree(self._folder, ignore_errors=True)

    # Its status ----------------------------------------------------------------------------------------------

    def _mark_changed(self) -> None:
        self._changed.set()

    async def _report(self) -> None:
        """Write the status whenever it has changed, until the final one is written."""
        final = False
        while not final:
            await self._changed.wait()
            # Changes come together: the last container's end is the pod's end.
            await waits.first(events=[self._all_stopped], timeout=TOGETHER_SECONDS)
            self._changed.clear()
            final = self._all_stopped.is_set()
            try:
                await self._write_status()
            except ApiError:
                # What the API refuses now it will refuse again: the next change is another status.
                log.exception("the status of %s was not taken", self._home.title)

    async def _write_status(self) -> None:
        wanted = status.pod_status(
            self.pod,
            [r.record for r in self.runners],
            status.PodFacts(
                host_ip=HOST_IP,
                pod_ip=self._home.facts.pod_ip,
                start_time=clock.seconds_text(self._began),
                sandbox_ready=self._sandbox_ready,
                all_stopped=self._all_stopped.is_set(),
                verdict=self._verdict,
            ),
            previous=self._reported,
            now=clock.seconds_text(clock.now()),
        )
        if wanted != self._reported:
            await self._patch_status(wanted)

    async def _patch_status(self, wanted: dict[str, Any]) -> None:
        if self._gone.is_set():
            return
        body = {"metadata": {"uid": self.uid}, "status": wanted}
        try:
            await self._api.patch(f"{self._path}/status", body, STRATEGIC_MERGE_PATCH)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            log.info("%s is gone: its status is not written", self._home.title)
        self._reported = wanted

    async def _reject(self, reason: str, message: str) -> None:
        self._machine.events.about_pod(self.pod, "Warning", reason, message)
        start = clock.seconds_text(self._began)
        await self._patch_status(status.rejected(self.pod, reason, message, start_time=start))


async def _finished(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for containers without ever cancelling them: they end by being stopped."""
    await asyncio.wait(tasks)
    for task in tasks:
        task.result()


def _runners(pod: Mapping[str, Any], home: PodHome) -> list[ContainerRunner]:
    runners = []
    for key, is_init in (("initContainers", True), ("containers", False)):
        for container in pod["spec"].get(key) or ():
            sidecar = is_init and container.get("restartPolicy") == "Always"
            record = status.ContainerRecord(container["name"], container["image"], is_init=is_init, is_sidecar=sidecar)
            runners.append(ContainerRunner(container, record, home))
    return runners


def _settle_unfinished(record: status.ContainerRecord) -> None:
    """A container that was not running when its pod ended: its last end counts, or that it never was."""
    if "terminated" in record.state:
        return
    if "terminated" in record.last_state:
        record.state = record.last_state
    elif not record.is_init:
        record.state = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": _LOST}}
