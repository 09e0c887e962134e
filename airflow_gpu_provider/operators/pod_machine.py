"""PodMachine: whether a pod's end was its machine's, where only the cloud can tell.

A managed node group drains its nodes, and aws-node-termination-handler taints and drains them: then the pod carries the
reason itself. A spot instance of a group with neither is shut down under its pod. Its kubelet may have said, with its
last breath, how the container answered SIGTERM; or nothing at all, and then the node leaves the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property

from airflow_gpu_provider.cluster.pod_end import KILLED
from airflow_gpu_provider.errors import GpuError, PodFailed, PodPreempted
from airflow_gpu_provider.platforms.base import MachineEnd, Platform
from airflow_gpu_provider.pools import GpuPool

_log = logging.getLogger(__name__)


def may_be_spot(pool: GpuPool) -> bool:
    """Say whether a machine of the pool may be spot; of groups that others own the spec does not say."""
    return pool.manage == "scale" or bool(set(getattr(pool, "capacity_types", ())) - {"ON_DEMAND"})


class PodMachine:
    """Asks the pool's platform, once for each pod, and only about ends that may have been the machine's.

    Args:
        name: The cloud's name for the machine; empty where it is not known, and nobody is asked.
        pool: The rendered spec.
        platform: Returns its platform.
    """

    def __init__(self, name: str, pool: GpuPool, platform: Callable[[], Platform]) -> None:
        self._name = name
        self._pool = pool
        self._platform = platform

    @cached_property
    def _end(self) -> MachineEnd | None:
        if not self._name:
            return None
        try:
            return self._platform().machine_end(self._name)
        except GpuError as error:
            _log.warning("What became of machine %s is not known: %s", self._name, error)
            return None

    def judged(self, error: GpuError | None, *, pod: str) -> GpuError | None:
        """Return how the pod named `pod` ended: by its own account (`error`; None: well), or with its machine."""
        if isinstance(error, PodPreempted):
            return self.explained(error)
        if error is None:
            end = self._end if may_be_spot(self._pool) else None
            return _preempted(pod, self._name, end, "exit code 0") if end and end.taken_back else None
        exit_code = error.details.get("exit_code")
        if type(error) is PodFailed and exit_code in KILLED and self._end:
            return _preempted(pod, self._name, self._end, f"exit code {exit_code}")
        return error

    def explained(self, error: PodPreempted) -> PodPreempted:
        """Return the preemption with the cloud's reason for it, where it has one."""
        if "machine" in error.details or self._end is None:
            return error
        what = f"{error.what.rstrip('.')} (machine {self._name}: {self._end.why})."
        return PodPreempted(what, error.fix, **error.details, machine=self._name)


def _preempted(pod: str, machine: str, end: MachineEnd, ended: str) -> PodPreempted:
    return PodPreempted(
        f"Pod {pod} was taken away before it had finished: its container ended with {ended} as its machine {machine}"
        f" did ({end.why}).",
        "Retry the task: the next try waits for new capacity.",
        pod=pod,
        machine=machine,
    )
