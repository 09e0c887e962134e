"""PodMachine: whether a pod ended with its machine, if only the cloud can tell.

A managed node group drains its nodes, and aws-node-termination-handler taints and drains them: then the pod carries the
reason itself. A spot instance of a group with neither is shut down while its pod runs. Its kubelet may still have
reported how the container answered SIGTERM; or nothing at all, and then the node leaves the cluster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from airflow_gpu_provider.errors import EndUnknown, GpuError, PodFailed, PodPreempted
from airflow_gpu_provider.platforms.base import MachineEnd, Platform
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.wait.end import KILLED

_PAUSES = (1.0, 2.0, 4.0)
"""Seconds before asking the cloud again if it reports no end of a machine: its answers may be seconds old (EC2
developer guide, "Eventual consistency in the Amazon EC2 API")."""

_log = logging.getLogger(__name__)


def may_be_spot(pool: GpuPool) -> bool:
    """Return True if a machine of the pool may be spot; for external groups the spec does not say."""
    return pool.manage == "scale" or bool(set(getattr(pool, "capacity_types", ())) - {"ON_DEMAND"})


class PodMachine:
    """Asks the pool's platform about ends that may have been the machine's.

    For a container that was killed, it asks again for some seconds. For one that succeeded it asks once: no machine
    should idle after each success.

    Args:
        name: The cloud's name for the machine, as the wait for the pod has seen it; empty if the wait was too short.
            Then the name comes from the node, which mostly still exists; otherwise it stays unknown.
        pool: The rendered spec.
        platform: Returns its platform.
        machine_of: Returns the machine of the node with this name; empty if there is none.
        sleep: Waits for so many seconds.
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
        "Retry the task: the next try waits for new capacity.",
        pod=pod,
        machine=machine,
    )
