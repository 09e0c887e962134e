"""How a pod ended, when the wait for it is over: from the pod itself, or from its watchers if it cannot say.

Pure. It is decided before anything of the pod is released, once, for the blocking operator and the deferred one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, Self

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError, PodPreempted
from airflow_gpu_provider.scaling.wait.waits import Progress
from airflow_gpu_provider.training.wait.end import PodEnd, certain_at, end_of, end_of_gone
from airflow_gpu_provider.training.wait.gpu_use import GpuUse
from airflow_gpu_provider.training.wait.pod_wait import PodWait


class AttemptWait(Protocol):
    """A wait for everything that one attempt runs; a PodWait is one."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def started(self) -> datetime: ...

    @property
    def deadline(self) -> datetime: ...

    def to_record(self) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class WaitOutcome:
    """The outcome of the wait for a pod.

    Attributes:
        uid: The pod's; another pod may have its name by now.
        saw_end: The wait ended by its own rules. False: the watching process could not continue.
        error: How the wait ended; None if the pod succeeded. Or why the pod could not be watched.
        container_ended: The base container had ended by then.
        machine: The cloud's name for the pod's machine; empty if its node was never seen.
        timeline: The phases of the pod's life.
        logs: How far its log is written: PodLogs.rest.
        lines: What the triggerer has logged of it, if another one may follow it: KeptLines.packed.
        result: The text of its result file, if it was already read.
        wait: The wait itself, to be resumed.
        use: The GPU use that was sampled.
    """

    namespace: str
    name: str
    uid: str
    saw_end: bool
    error: GpuError | None = None
    container_ended: bool = False
    machine: str = ""
    timeline: Sequence[Mapping[str, Any]] = ()
    logs: Mapping[str, Any] = field(default_factory=dict)
    lines: str = ""
    result: str | None = None
    wait: AttemptWait | None = None
    use: GpuUse = field(default_factory=GpuUse)

    @classmethod
    def of_event(
        cls, event: Mapping[str, Any], read_wait: Callable[[Mapping[str, Any]], AttemptWait] = PodWait.from_record
    ) -> Self:
        """Read GpuPodTrigger's event; `read_wait` reads its wait."""
        error = GpuError.from_record(event["error"]) if event.get("error") else None
        if error is None and event["status"] != "success":
            error = GpuError(f"The wait for pod {event['name']} failed: {event.get('message')}.", "See the log above.")
        return cls(
            namespace=event["namespace"],
            name=event["name"],
            uid=event.get("uid") or "",
            saw_end=event["status"] != "error",
            error=error,
            container_ended=event["status"] in ("success", "failed"),
            machine=event.get("machine") or "",
            timeline=event.get("timeline") or (),
            logs=event.get("logs") or {},
            lines=event.get("lines") or "",
            result=event.get("result"),
            wait=read_wait(event["wait"]) if event.get("wait") else None,
            use=GpuUse.from_record(event.get("gpu_use") or {}),
        )

    @classmethod
    def of_progress(
        cls, wait: AttemptWait, progress: Progress, logs: Mapping[str, Any], use: GpuUse | None = None
    ) -> Self:
        """Return the outcome of a worker's own wait."""
        result = progress.result or {}
        return cls(
            namespace=wait.namespace,
            name=wait.name,
            uid=wait.uid,
            saw_end=progress.result is not None,
            error=progress.error,
            container_ended=bool(result.get("container_ended")),
            machine=result.get("machine") or "",
            timeline=result.get("timeline") or (),
            logs=logs,
            wait=wait,
            use=use or GpuUse(),
        )

    def end(self, pod: PodState | None, now: datetime) -> PodEnd | None:
        """Return how the pod ended; None if it may still run and could not be watched.

        A success that the wait saw stands, whatever happens to the pod's node afterwards, and so does one that only the
        pod shows. Of two failures the wait's counts if it knows more than the pod: it has also seen the node.

        Args:
            pod: The pod as it is now; None if it is gone.
            now: By the cluster's clock.
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
