"""Why a pod failed, if its last log lines or its node say more than an exit code; or its machine.

A managed node group drains its nodes, and aws-node-termination-handler taints and drains them: then the pod carries the
reason itself. A spot instance of a group with neither is shut down while its pod runs. Its kubelet may still have
reported how the container answered SIGTERM; or nothing at all, and then the node leaves the cluster: PodMachine asks.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from airflow_gpu_provider.accelerators import GPUS
from airflow_gpu_provider.clouds.base import MachineEnd, Platform
from airflow_gpu_provider.cluster.api.nodes import machine_of
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.cluster.model.pod_log import lines_of, shown
from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import (
    BadGpu,
    DriverMissing,
    EndUnknown,
    GpuError,
    GpuOutOfMemory,
    PodFailed,
    PodImageError,
    PodOutOfMemory,
    PodPreempted,
)
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.wait.end import EVICTED, KILLED, NOT_STARTED, OOM_KILLED, RETRY, end_of
from airflow_gpu_provider.training.wait.log_end import last_error
from airflow_gpu_provider.training.wait.object_wait import of_rank
from airflow_gpu_provider.training.wait.program_signs import HELPER_KILLED, lost_helper, program_advice_on
from airflow_gpu_provider.training.wait.signs import BROKEN, NO_DRIVER, Advice, Cause, advice_on

if TYPE_CHECKING:
    from airflow_gpu_provider.training.life.hook import PoolHook

BAD_XIDS = frozenset({48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143})
"""From NVIDIA's "XID Errors" catalogue, less those that a program causes itself (13, 31, 43, 45, 68: which the device
plugin does not count against a GPU either)."""

_COMMAND_NOT_FOUND = 127

_OF_GPU = re.compile(r"\b(?:CUDA|NCCL|GPU)", re.IGNORECASE)
_XID = re.compile(r"NVRM: Xid \([^)]{0,60}\): (\d{1,5})\b")
_NEEDS_RESET = re.compile(
    r"GPU recovery action changed .{0,80}? to \S{1,20} \((?:GPU Reset|Node Reboot|Drain and Reset)"
)  # XID 154
_NO_NVIDIA_SMI = re.compile(r"nvidia-smi: (command )?not found|exec: \"nvidia-smi\"", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LastWord:
    """The line that says why a container failed, and what it means."""

    advice: Advice
    line: str

    @property
    def cause(self) -> Cause:
        return self.advice.cause


def last_word(lines: Sequence[str], *, lacks_command: bool = False) -> LastWord | None:
    """Return the line of the program's last error that names the GPU or its driver as the cause, or None.

    A missing nvidia-smi is a cause only if a missing command ended the container (`lacks_command`). What the kernel
    said of the GPU counts wherever it is, if the last error is one of CUDA's: that does not say more.
    """
    error_lines = last_error(lines)
    for line in error_lines:
        if advice := _advice(line, lacks_command=lacks_command):
            return LastWord(advice=advice, line=line.strip())
    if any(_OF_GPU.search(line) for line in error_lines):
        return next(
            (LastWord(advice=BROKEN, line=shown(line).strip()) for line in lines[::-1] if _is_bad_xid(line)), None
        )
    return None


def _of_program(lines: Sequence[str], *, is_oom: bool = False) -> LastWord | None:
    """Return the line of the program's last error that names the container's memory, or the image, as the cause.

    Where the kernel has killed a process for memory (`is_oom`), a loss of one that ended the program was that.
    """
    error_lines = last_error(lines)
    found = ((program_advice_on(line), line.strip()) for line in error_lines)
    if word := next((LastWord(advice=advice, line=line) for advice, line in found if advice), None):
        return word
    lost = lost_helper(lines) if is_oom else None
    return LastWord(advice=HELPER_KILLED, line=shown(lost).strip()) if lost else None


def _advice(line: str, *, lacks_command: bool) -> Advice | None:
    if _XID.search(line):
        return BROKEN if _is_bad_xid(line) else None
    if lacks_command and _NO_NVIDIA_SMI.search(line):
        return NO_DRIVER
    return advice_on(line)


def _is_bad_xid(line: str) -> bool:
    has_bad_number = not BAD_XIDS.isdisjoint(int(number) for number in _XID.findall(line))
    return has_bad_number or _NEEDS_RESET.search(line) is not None


E = TypeVar("E", bound=PodFailed)

_SHOWN = 10
# CUDA's runtime calls a driver whose library it does not find "insufficient", which PyTorch calls none.
_LIBRARY_NOT_FOUND = re.compile(
    r"libcuda\.so|libnvidia-ml\.so|NVML Shared Library Not Found|NVMLError_LibraryNotFound"
    r"|CUDA driver library cannot be found|Found no NVIDIA driver|driver version is insufficient"
    r"|cudaErrorInsufficientDriver|failed call to cuInit|JAX was unable to load the CUDA libraries"
)
_TYPES: Mapping[Cause, type[PodFailed]] = {"gpu memory": GpuOutOfMemory, "gpu": BadGpu, "driver": DriverMissing}


def _type_of(word: LastWord, error: PodFailed, pool: GpuPool) -> type[PodFailed]:
    """Return the type for a last word.

    A process that was killed was so for memory if the container's end says so. Another try helps an image that is not
    for the machine only where the next one may be of another type.
    """
    if word.advice is HELPER_KILLED and error.details.get("reason") == OOM_KILLED:
        return PodOutOfMemory
    if word.cause == "image" and len(set(pool.gpu_products)) == 1:
        return PodImageError
    return _TYPES.get(word.cause, PodFailed)


def diagnosed(
    error: PodFailed,
    lines: Sequence[str],
    *,
    pool: GpuPool,
    node: str,
    bad_gpu: str,
    type_of: Callable[[str], str] = lambda node: "",
) -> PodFailed:
    """Return the failure with its last log lines, and with the type that these or the node's state imply.

    `bad_gpu` is why the node's GPUs cannot be trusted; empty if they can. `type_of` returns a node's machine type, or
    an empty text.
    """
    details = {**error.details, "node": node, "last_lines": _last(lines)} if lines else error.details
    lacks_command = error.details.get("exit_code") == _COMMAND_NOT_FOUND or error.details.get("reason") in NOT_STARTED
    is_explained = error.details.get("reason") == EVICTED
    word = None if is_explained else last_word(lines, lacks_command=lacks_command)
    word = word or last_word(lines_of(error.what), lacks_command=lacks_command)
    if word is None and not is_explained:
        is_oom = error.details.get("reason") == OOM_KILLED
        word = _of_program(lines, is_oom=is_oom) or _of_program(lines_of(error.what))
    if bad_gpu and not is_explained and (word is None or word.cause == "driver"):
        word = LastWord(advice=BROKEN, line=bad_gpu)
    if word is not None:
        memory = _gpu_memory(pool, type_of(node)) if word.cause == "gpu memory" and node else ""
        happened = word.advice.what.format(node=node, memory=memory)
        first_line = error.what.partition("\n")[0].rstrip(".")
        because = f" ({word.line.rstrip('.')})" if word.line not in error.what.partition("\n")[0] else ""
        before = str(details.get("without_log") or error.what).partition("\n")[0].rstrip(".")
        details = {**details, "node": node, "without_log": f"{before}: {happened}."}
        return _type_of(word, error, pool)(f"{first_line}: {happened}{because}.", _fix(word, pool), **details)
    return with_last_lines(PodFailed(error.what, error.fix, **details), lines) if lines else error


def for_bad_gpu(error: PodPreempted, node: str, bad_gpu: str) -> PodPreempted:
    """Return a preemption with what speaks against its node's GPUs: an agent that says so may have drained the node."""
    if not bad_gpu:
        return error
    what = f"{error.what.rstrip('.')}; all pods avoid node {node} for its GPU ({bad_gpu})."
    brief = (
        f"{error.what.rstrip('.')}; all pods avoid node {node} for its GPU."  # a training's line may speak against it
    )
    return PodPreempted(what, error.fix, **error.details, without_log=brief)


def with_last_lines(error: E, lines: Sequence[str]) -> E:
    """Return the error with the last lines of its pod's log, after what to do; as it is if there are none."""
    if not lines:
        return error
    last = _last(lines)
    fix = "\n".join([f"{error.fix} Its last lines:".strip(), *last])
    return type(error)(error.what, fix, **{**error.details, "last_lines": last})


def _last(lines: Sequence[str]) -> list[str]:
    return [shown(line) for line in lines[-_SHOWN:]]


def _fix(word: LastWord, pool: GpuPool) -> str:
    """Return what to do: an image may have a driver, and no way to its library."""
    hint = pool.how_to_find_libraries if _LIBRARY_NOT_FOUND.search(word.line) else ""
    return f"{hint} {word.advice.fix}" if hint else word.advice.fix


def _gpu_memory(pool: GpuPool, instance_type: str) -> str:
    """Return which GPUs the node has: by its machine type, or where all of the pool's machines have the same."""
    machine = pool.gpus_of(instance_type)
    names = (machine.gpu.name,) if machine is not None else pool.gpu_products
    known = {f"{name} with {GPUS[name].memory_gib} GiB" for name in names if name in GPUS}
    return f"; its node has {known.pop()} each" if len(known) == len(names) == 1 else ""


_PAUSES = (1.0, 2.0, 4.0)
"""Seconds before asking the cloud again if it reports no end of a machine: its answers may be seconds old (EC2
developer guide, "Eventual consistency in the Amazon EC2 API")."""

_log = logging.getLogger(__name__)


def may_be_spot(pool: GpuPool) -> bool:
    """Return True if a machine of the pool may be spot; for external groups the spec does not say."""
    return pool.manage == "scale" or bool(set(pool.markets) - {"ON_DEMAND"})


class PodMachine:
    """Asks the pool's platform about ends that may have been the machine's.

    For a container that was killed, it asks again for some seconds. For one that succeeded it asks once: no machine
    should idle after each success.

    Args:
        name: The cloud's name for the machine, as the wait for the pod has seen it; empty if the wait was too short.
            Then the name comes from the node, which mostly still exists; otherwise it stays unknown.
        machine_of: Returns the machine of the node with this name; empty if there is none.
    """

    def __init__(
        self,
        name: str,
        pool: GpuPool,
        platform: Callable[[], Platform],
        machine_of: Callable[[str], str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._name = name
        self._pool = pool
        self._platform = platform
        self._machine_of = machine_of
        self._sleep = sleep
        self._end: MachineEnd | None = None
        self._asked = False

    def judged(self, error: GpuError | None, *, pod: str, node: str) -> GpuError | None:
        """Return how a pod on `node` ended: by its own state (`error`; None: success), or with its machine."""
        if isinstance(error, PodPreempted):
            return self.explained(error)
        if error is None:
            end = self._end_of(node) if may_be_spot(self._pool) else None
            return _preempted(pod, self._name, end, "ended with exit code 0") if end and end.taken_back else None
        if isinstance(error, EndUnknown):
            end = None if "machine" in error.details else self._end_of(node)
            return _preempted(pod, self._name, end, "ended unseen") if end else error
        exit_code = error.details.get("exit_code")
        if type(error) is PodFailed and exit_code in KILLED and (end := self._end_of(node, _PAUSES)):
            return _preempted(pod, self._name, end, f"ended with exit code {exit_code}")
        return error

    def explained(self, error: PodPreempted) -> PodPreempted:
        """Return the preemption with the cloud's reason, if it has one."""
        is_explained = not {"machine", "released_by"}.isdisjoint(error.details)
        end = None if is_explained else self._end_of(error.details.get("node") or "")
        if end is None:
            return error
        what = f"{error.what.rstrip('.')} (machine {self._name}: {end.why})."
        return PodPreempted(what, error.fix, **error.details, machine=self._name)

    def _end_of(self, node: str, pauses: Sequence[float] = ()) -> MachineEnd | None:
        if not self._asked:
            self._asked = True
            try:
                self._end = self._ask(node, pauses)
            except GpuError as error:
                _log.warning("What became of machine %s of node %s is not known: %s", self._name, node, error)
        return self._end

    def _ask(self, node: str, pauses: Sequence[float]) -> MachineEnd | None:
        self._name = self._name or (self._machine_of(node) if node else "")
        if not self._name:
            return None
        platform = self._platform()
        end = platform.machine_end(self._name)
        for pause in pauses:
            if end:
                break
            self._sleep(pause)
            end = platform.machine_end(self._name)
        return end


def _preempted(pod: str, machine: str, end: MachineEnd, ended: str) -> PodPreempted:
    return PodPreempted(
        f"Pod {pod} was preempted: its container {ended} when its machine {machine} was terminated ({end.why}).",
        RETRY,
        pod=pod,
        machine=machine,
    )


def lost_peer(states: Mapping[int, PodState], failed: int, cluster: PoolHook) -> GpuError | None:
    """Return the preemption of a rank whose machine the cloud has ended; None if no peer of `failed` lost its machine.

    A spot machine may be gone minutes before Kubernetes reports it on the node, and its peers fail on a broken
    connection within a second. So the cloud is asked about the machines of the ranks that have not succeeded.
    """

    def preempted(rank: int) -> GpuError | None:
        pod = states[rank]
        machine = machine_of(cluster.api, pod.node) if pod.node else ""
        end = cluster.platform.machine_end(machine) if machine else None
        if end is None:
            return None
        gone = f"its machine {machine} was terminated ({end.why}) before the pod had finished"
        error = PodPreempted(
            f"Pod {pod.name} was preempted: {gone}.", RETRY, pod=pod.name, node=pod.node, machine=machine
        )
        return of_rank(error, rank)

    try:
        found = in_parallel(
            preempted, [rank for rank in sorted(states) if rank != failed and not _is_well(states[rank])]
        )
    except GpuError as error:
        _log.warning("What became of the other ranks' machines is not known: %s", error)
        return None
    return next((error for error in found if error is not None), None)


def _is_well(pod: PodState) -> bool:
    end = end_of(pod)
    return end is not None and end.error is None
