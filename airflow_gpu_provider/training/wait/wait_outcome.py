"""How a pod ended, when the wait for it is over: from the pod itself, or from its watchers if it cannot say.

Pure. It is decided before anything of the pod is released, once, for the blocking operator and the deferred one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self

from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.errors import GpuError, PodPreempted
from airflow_gpu_provider.scaling.wait.records import Record
from airflow_gpu_provider.scaling.wait.wait_loop import Progress
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait
from airflow_gpu_provider.training.wait.end import PodEnd, certain_at, end_of, end_of_gone
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.wait.gpu_use import GpuUse
from airflow_gpu_provider.training.wait.pod_wait import PodWait
from airflow_gpu_provider.training.wait.workload_wait import WorkloadWait

WAITS: Mapping[str, type[AttemptWait]] = {each.run_kind: each for each in (PodWait, GangWait, WorkloadWait)}


def read_wait(kind: str, record: Json) -> AttemptWait:
    """Read the wait of a trigger's record or event: its `run_kind`, and itself."""
    return WAITS[kind].from_record(record)


@dataclass(frozen=True, kw_only=True)
class WaitOutcome(Record):
    """The outcome of the wait for what an attempt runs: for a task that defers, the event of its trigger.

    Attributes:
        namespace, name, uid: Those of the wait; another pod may have the name by now.
        saw_end: The wait ended by its own rules. False: the watching process could not continue.
        error: How the wait ended; None if the pod succeeded. Or why the pod could not be watched.
        container_ended: The base container had ended by then.
        machine: The cloud's name for the pod's machine; empty if its node was never seen.
        timeline: The phases of the pod's life.
        logs: How far its log is written: PodLogs.safe_rest, and whether the triggerer has `streamed` any of it.
        lines: What the triggerer has logged of it, if another one may follow it: KeptLines.packed.
        result: The text of its result file, if it was already read.
        kind, wait: The wait itself, to be resumed: see read_wait. Empty, and None, if there was none.
        gpu_use: The GPU use that was sampled.
    """

    namespace: str
    name: str
    uid: str
    saw_end: bool
    error: GpuError | None = None
    container_ended: bool = False
    machine: str = ""
    timeline: Sequence[Json] = ()
    logs: Json = field(default_factory=dict)
    lines: str = ""
    result: str | None = None
    kind: str = ""
    wait: Json | None = None
    gpu_use: GpuUse = field(default_factory=GpuUse)

    @classmethod
    def of_progress(cls, wait: AttemptWait, progress: Progress) -> Self:
        """Return the outcome of a wait that is over."""
        result = progress.result or {}
        return replace(
            cls.of_failure(wait, progress.error),
            saw_end=progress.result is not None,
            container_ended=bool(result.get("container_ended")),
            machine=result.get("machine") or "",
            timeline=result.get("timeline") or (),
        )

    @classmethod
    def of_failure(cls, wait: AttemptWait, error: GpuError | None) -> Self:
        """Return the outcome of a wait that could not be done."""
        return cls(
            namespace=wait.namespace,
            name=wait.name,
            uid=wait.uid,
            saw_end=False,
            error=error,
            kind=wait.run_kind,
            wait=wait.to_record(),
        )

    def read_wait(self) -> AttemptWait | None:
        """Return the wait, if there was one."""
        return read_wait(self.kind, self.wait) if self.wait else None

    def end(self, pod: PodState | None, now: datetime) -> PodEnd | None:
        """Return how the pod, which is None if it is gone, ended; None if it may still run and could not be watched.

        A success that the wait saw stands, whatever happens to the pod's node afterwards, and so does one that only the
        pod shows. Of two failures the wait's counts if it knows more than the pod: it has also seen the node.
        """
        if self.saw_end and self.error is None:
            return PodEnd()
        own = end_of(pod) if pod is not None else None
        if own is not None and pod is not None and (believed_at := certain_at(pod)) and now < believed_at:
            own = None
        if own is not None and own.error is None:
            return own
        if self.saw_end:
            knows_more = self.container_ended or isinstance(self.error, PodPreempted) or own is None
            return PodEnd(error=self.error) if knows_more else own
        return end_of_gone(None, name=self.name, is_unseen=True) if pod is None else own
