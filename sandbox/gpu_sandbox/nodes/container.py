"""One container of a pod: image, environment, start, restarts with back-off, end, and being stopped."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_sandbox.nodes import (
    clock,
    command,
    environment,
    hostnames,
    image_pull,
    images,
    probes,
    quantities,
    status,
    waits,
)
from gpu_sandbox.nodes.container_log import ContainerLog
from gpu_sandbox.nodes.errors import ContainerStartError
from gpu_sandbox.nodes.launcher import Process
from gpu_sandbox.nodes.machine import Machine
from gpu_sandbox.nodes.node import Node
from gpu_sandbox.nodes.restarts import BackOff, go_duration, should_restart
from gpu_sandbox.nodes.spec import Image
from gpu_sandbox.nodes.stdio import Stdio

CONFIG_RETRY_SECONDS = 2.0
# The kubelet finds out that it has to wait when it next looks at the pod.
END_SHOWN_SECONDS = 1.0
log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class PodHome:
    """What a pod's containers share.

    `all_tried` is set when each of them, init containers aside, has been started once.
    """

    machine: Machine
    node: Node
    pod: Mapping[str, Any]
    folder: Path
    facts: environment.Facts
    changed: Callable[[], None]
    volumes: Mapping[str, Path]
    all_tried: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return str(self.pod["metadata"]["uid"])

    @property
    def kernel_name(self) -> str:
        """What `hostname` prints in the pod. Raises NameTooLong."""
        return hostnames.kernel_name(self.pod, self.node.name)

    @property
    def hosts_file(self) -> Path:
        """What its containers have as /etc/hosts."""
        return self.folder / "etc-hosts"

    @property
    def title(self) -> str:
        """The pod as the kubelet names it in messages."""
        metadata = self.pod["metadata"]
        return f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"

    async def lookup(self, kind: str, name: str) -> Mapping[str, bytes] | None:
        """A ConfigMap's or Secret's data in the pod's namespace."""
        return await self.machine.lookup(self.pod["metadata"]["namespace"], kind, name)


class ContainerRunner:
    """Runs one container until it has ended for good; its record says at any time how it is."""

    def __init__(self, container: Mapping[str, Any], record: status.ContainerRecord, home: PodHome) -> None:
        self.container = container
        self.record = record
        self._home = home
        self._stopping = asyncio.Event()
        self._process: Process | None = None
        self._spec: dict[str, Any] = {}
        self._out_of_memory = False
        self._restarting = False
        self._starting: asyncio.Task[Process] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._kill_at = float("inf")
        self._kill_moved = asyncio.Event()
        self.logs: list[ContainerLog] = []
        self.tried = asyncio.Event()
        self.running_or_done = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The container's name."""
        return self.record.name

    @property
    def process(self) -> Process | None:
        """The container's first process while it runs."""
        return self._process

    @property
    def home(self) -> PodHome:
        """What it shares with the other containers of its pod."""
        return self._home

    @property
    def stopping(self) -> bool:
        """Whether it is being ended for good."""
        return self._stopping.is_set()

    @property
    def stop_asked(self) -> asyncio.Event:
        """Set as soon as it is being ended for good."""
        return self._stopping

    def start(self) -> asyncio.Task[None]:
        """Run it in a task of its own."""
        self.task = asyncio.create_task(self._run(), name=f"container {self.name} of {self._home.title}")
        return self.task

    async def stop(self, grace: float, message: str | None = None) -> None:
        """End it for good: preStop, SIGTERM, after grace seconds SIGKILL. A second call may shorten the grace."""
        self._stopping.set()
        await self.kill(grace, message or f"Stopping container {self.name}")
        if self.task is not None:
            await asyncio.wait([self.task])

    async def kill(self, grace: float, message: str) -> None:
        """End the running process; whether the container is started again is another question."""
        process = self._process
        if process is None or not process.running:
            return
        if self._killing is None:
            self._kill_at = time.monotonic() + grace
            # A task of its own: whoever asked for it may be gone before it is done.
            self._killing = asyncio.create_task(self._kill(process, message))
        self.hasten(grace)
        await asyncio.wait([self._killing])

    async def _kill(self, process: Process, message: str) -> None:
        self.say("Normal", "Killing", message)
        await self._pre_stop()
        process.signal(self._stop_signal())
        while process.running and (left := self._kill_at - time.monotonic()) > 0:
            self._kill_moved.clear()
            await waits.first(process.exit_code, events=[self._kill_moved], timeout=left)
        process.signal(signal.SIGKILL)
        await asyncio.wait([process.exit_code])

    def hasten(self, grace: float) -> None:
        """Shorten the grace period of a stop that is under way; one that is not is left alone."""
        if self._killing is not None:
            self._kill_at = min(self._kill_at, time.monotonic() + grace)
            self._kill_moved.set()

    async def destroy(self) -> None:
        """End it at once and without a word, as a machine that is switched off does."""
        self._stopping.set()
        if self._starting is not None:
            await asyncio.wait([self._starting])
            if self._starting.exception() is None:
                process = self._starting.result()
                process.signal(signal.SIGKILL)
                await asyncio.wait([process.exit_code])
        if self.task is not None:
            await waits.cancel(self.task)

    async def exec(self, argv: list[str], stdio: tuple[int, int, int], *, tty: bool) -> Process:
        """Run a command inside the running container. Raises ContainerStartError."""
        if self._process is None or not self._process.running:
            raise ContainerStartError(f'container "{self.name}" is not running')
        spec = self._spec | {"argv": argv, "tty": tty}
        return await self._home.machine.launcher.exec(self._process, spec, stdio)

    async def _run(self) -> None:
        back_off = BackOff()
        policy = self._home.pod["spec"].get("restartPolicy", "Always")
        try:
            while not self._stopping.is_set():
                image = await image_pull.have_image(self)
                variables = await self._variables(image) if image else None
                if image is None or variables is None or self._stopping.is_set():
                    return
                code = await self._once(image, variables)
                if self._stopping.is_set() or not should_restart(
                    self.container, policy, code, is_init=self.record.is_init
                ):
                    return
                await self._back_off(back_off)
        finally:
            self.tried.set()
            self.running_or_done.set()

    async def _back_off(self, back_off: BackOff) -> None:
        # What failed a probe is replaced in one go, before the kubelet knows of an end that it has to wait after.
        first_probe = self._restarting and self.record.restart_count == 0
        delay = 0.0 if first_probe else back_off.after_end(time.monotonic())
        self.record.last_state = self.record.state
        if delay:
            if not self._restarting:
                await self.pause(END_SHOWN_SECONDS)
            message = f"back-off {go_duration(delay)} restarting failed container={self.name} pod={self._home.title}"
            self.wait_state("CrashLoopBackOff", message)
            text = f"Back-off restarting failed container {self.name} in pod {self._home.title}"
            self.say("Warning", "BackOff", text)
            await self.pause(delay)
        if not self._stopping.is_set():
            self.record.restart_count += 1

    async def _variables(self, image: Image) -> dict[str, str] | None:
        """The container's environment, once all that it refers to exists; None when stopped meanwhile."""
        while not self._stopping.is_set():
            try:
                return await command.variables(self.container, image, self._home)
            except environment.ConfigError as error:
                self.say("Warning", "Failed", f"Error: {error}")
                self.wait_state("CreateContainerConfigError", str(error))
            await self.pause(CONFIG_RETRY_SECONDS)
        return None

    # One run -------------------------------------------------------------------------------------------------

    async def _once(self, image: Image, variables: dict[str, str]) -> int:
        """Start the container, wait for its end, and record it; returns its exit code."""
        record = self.record
        attempt = self._home.folder / "containers" / self.name / str(record.restart_count)
        attempt.mkdir(parents=True)
        message_file = attempt / command.TERMINATION_LOG
        message_file.touch()
        message_file.chmod(0o666)  # whoever the container runs as
        record.container_id = f"containerd://{secrets.token_hex(32)}"
        # From now on the container's own words: before, only the pod's are known.
        record.image, record.image_id = images.full(self.container["image"]), images.image_id(self.container["image"])
        container_log = ContainerLog(attempt / "log", max_size=self._home.node.spec.container_log_max_size)
        self.logs.append(container_log)
        stdio = Stdio(container_log, tty=bool(self.container.get("tty")), stdin=bool(self.container.get("stdin")))
        try:
            process = await self._launch(image, variables, stdio, attempt)
            if process is None:
                return 128
            code = await self._accompany(process, image, variables)
            await stdio.drained()
        finally:
            stdio.close()
        self._ended(code, message_file)
        return code

    async def _launch(self, image: Image, variables: Mapping[str, str], stdio: Stdio, attempt: Path) -> Process | None:
        home = self._home
        try:
            argv = command.of(self.container, image, variables, home, self.record)
            self._spec = command.start_spec(self.container, image, variables, home, argv, attempt)
            self._starting = asyncio.create_task(home.machine.launcher.start(self._spec, stdio.child_ends))
            process = await asyncio.shield(self._starting)
        except (ContainerStartError, environment.ConfigError) as error:
            self._start_failed(str(error))
            return None
        stdio.started()
        self._process, self._killing, self._kill_at = process, None, float("inf")
        self._out_of_memory = self._restarting = False
        self.say("Normal", "Created", "Container created")
        self.say("Normal", "Started", "Container started")
        self.tried.set()
        return process

    async def _accompany(self, process: Process, image: Image, variables: Mapping[str, str]) -> int:
        """See a running process to its end; returns its exit code."""
        record, machine = self.record, self._home.machine
        record.state = {"running": {"startedAt": clock.seconds_text(clock.now())}}
        record.started = not self.container.get("startupProbe")
        record.ready = record.started and not self.container.get("readinessProbe")
        if record.started:
            self.running_or_done.set()
        if not self._post_start():
            self._home.changed()
        if self._stopping.is_set():
            process.signal(signal.SIGKILL)  # stopped while it was being started
        if image.kind == "device-plugin":
            self._home.node.device_plugin_started(self, variables)
        if image.kind == "efa-plugin":
            self._home.node.efa_plugin_started(self)
        if image.kind == "driver" and not record.is_init:
            self._home.node.driver_installed()
        self._watch_memory(process)
        around = asyncio.create_task(self._around())
        try:
            return await asyncio.shield(process.exit_code)
        finally:
            await _cancelled(around)
            machine.memory.remove(process.host_pid)
            self._home.node.device_plugin_ended(self)
            if image.kind == "driver" and process.exit_code.done() and process.exit_code.result() == 0:
                self._home.node.driver_installed()

    def _ended(self, code: int, message_file: Path) -> None:
        record = self.record
        reason = "OOMKilled" if self._out_of_memory else "Completed" if code == 0 else "Error"
        record.ready = False
        # The API shows an init container that is done as ready.
        if record.is_init and not record.is_sidecar:
            record.ready = code == 0
        record.started = False
        record.state = status.terminated(
            code,
            reason,
            started=record.state["running"]["startedAt"],
            finished=clock.seconds_text(clock.now()),
            container_id=record.container_id,
            message=self._termination_message(code, message_file),
        )
        self._process = None
        if not self._restarting:
            self._home.changed()

    def _start_failed(self, problem: str) -> None:
        # A program that is not there is found before the container's own surroundings are made.
        place = "" if problem.startswith("exec: ") else "error during container init: "
        text = (
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
            f"failed: unable to start container process: {place}{problem}: unknown"
        )
        self.say("Normal", "Created", "Container created")
        self.say("Warning", "Failed", f"Error: {text}")
        self.record.state = status.terminated(
            128,
            "StartError",
            started="1970-01-01T00:00:00Z",
            finished=clock.seconds_text(clock.now()),
            container_id=self.record.container_id,
            message=text,
        )
        self.tried.set()
        self._home.changed()

    def _termination_message(self, code: int, file: Path) -> str:
        message = file.read_bytes()[:4096].decode(errors="replace")
        fallback = self.container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not message and code != 0 and fallback:
            return self.logs[-1].tail(80, 2048)
        return message

    def _watch_memory(self, process: Process) -> None:
        limit = ((self.container.get("resources") or {}).get("limits") or {}).get("memory")
        if limit is None:
            return

        def over() -> None:
            self._out_of_memory = True
            process.signal(signal.SIGKILL)

        self._home.machine.memory.add(process.host_pid, quantities.whole(limit), over)

    # Hooks and probes ----------------------------------------------------------------------------------------

    async def _around(self) -> None:
        """What accompanies a running container: its postStart hook, before which it is not shown, then its probes."""
        if hook := self._post_start():
            if not await self._handle(hook, timeout=None):
                self.say("Warning", "FailedPostStartHook", "PostStartHook failed")
                await self.kill(self._grace(), "FailedPostStartHook")
                return
            self._home.changed()
        if not self.record.is_init:
            # The kubelet probes what its last look has found running, and a look starts all containers.
            await self._home.all_tried.wait()
        await probes.watch(self)

    def _post_start(self) -> dict[str, Any] | None:
        return (self.container.get("lifecycle") or {}).get("postStart")

    async def _pre_stop(self) -> None:
        hook = (self.container.get("lifecycle") or {}).get("preStop")
        if hook is None:
            return
        timeout = max(self._kill_at - time.monotonic(), 0.0)
        if not await self._handle(hook, timeout=timeout):
            self.say("Warning", "FailedPreStopHook", "PreStopHook failed")

    async def _handle(self, hook: Mapping[str, Any], *, timeout: float | None) -> bool:
        return (await probes.attempt(hook, self, timeout=timeout)).passed

    def probe_address(self) -> str:
        """Where the container's ports are reached: on the host's network, always this machine."""
        return "127.0.0.1"

    def probed(self, *, ready: bool | None = None, started: bool | None = None) -> None:
        """A probe's verdict."""
        record = self.record
        before = (record.ready, record.started)
        if started is not None:
            record.started = started
            if started:
                self.running_or_done.set()
                record.ready = not self.container.get("readinessProbe")
        if ready is not None:
            record.ready = ready
        if before != (record.ready, record.started):
            self._home.changed()

    def unhealthy(self, kind: str, output: str) -> None:
        """Say in an event that a probe (``Liveness``, ``Readiness``, ``Startup``) failed."""
        self.say("Warning", "Unhealthy", f"{kind} probe failed: {output}")

    def _grace(self) -> float:
        return float(self._home.pod["spec"].get("terminationGracePeriodSeconds", 30))

    async def restart(self, why: str) -> None:
        """End the process because a probe says so; the restart policy decides what follows."""
        spec = self._home.pod["spec"]
        if (self.container.get("restartPolicy") or spec.get("restartPolicy")) != "Never":
            self._restarting = True
            await self.kill(self._grace(), f"{why}, will be restarted")
        elif len(spec["containers"]) == 1:
            # Nothing of the pod is left to run, so the kubelet ends the pod.
            await self.kill(self._grace(), f"Stopping container {self.name}")
        else:
            await self.kill(self._grace(), why)

    def _stop_signal(self) -> int:
        name = (self.container.get("lifecycle") or {}).get("stopSignal") or "SIGTERM"
        return int(getattr(signal, name, signal.SIGTERM))

    # Small change --------------------------------------------------------------------------------------------

    def wait_state(self, reason: str, message: str) -> None:
        """Show that the container waits, and why."""
        self.record.state = status.waiting(reason, message)
        self.tried.set()
        self._home.changed()

    def say(self, kind: str, reason: str, message: str) -> None:
        """An event about this container."""
        self._home.machine.events.about_pod(
            self._home.pod, kind, reason, message, container=self.name, is_init=self.record.is_init
        )

    async def pause(self, seconds: float) -> None:
        """Wait, or until stopped."""
        await waits.event(self._stopping, timeout=max(seconds, 0.0))


async def _cancelled(task: asyncio.Task[None]) -> None:
    await waits.cancel(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a container's probes failed", exc_info=error)
