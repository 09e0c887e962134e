"""TaskLog: the log of a task's pods as its worker writes it: from which containers, in which form, and how far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import redact
from kubernetes.client import ApiClient, V1Pod

from airflow_gpu_provider.cluster.pod_log import log_line
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError, PodPreempted
from airflow_gpu_provider.pods.collected_log import LogRest, logged_containers
from airflow_gpu_provider.pods.end import end_of
from airflow_gpu_provider.pods.followed_log import Tell
from airflow_gpu_provider.pods.secrets import masked_words
from airflow_gpu_provider.scaling.setbacks import Setbacks

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

_WITHIN = timedelta(minutes=2)
"""For how long the rest of a log is tried to be read; then its node does not answer, and the pod's end counts."""


@dataclass(kw_only=True)
class TaskLog:
    """The log of one pod after another.

    Attributes:
        log: The task's own.
        containers, init_containers: Whose logs are wanted: see logged_containers.
        get_logs: False: nobody's.
        with_name: The container's name comes before each line.
        formatter: Makes a line of a container's name and its text. Default: "[name] text".
        in_triggerer: The triggerer streams it, and what it has not is written here.
        on_line: Also takes each line that has text.
        followed: How far the present pod's is written: PodLogs.rest.
    """

    log: Logger
    containers: Any
    init_containers: Any
    get_logs: bool
    with_name: bool
    formatter: Callable[[str, str], str] | None
    in_triggerer: bool
    on_line: Tell | None = None
    followed: Mapping[str, Any] = field(default_factory=dict)

    def to_stream(self, pod: V1Pod | None, api: ApiClient) -> dict[str, Any] | None:
        """Return what PodLogs streams of the pod; in a triggerer nothing that `formatter`, a function, has to form."""
        if not self.get_logs:
            return None
        followed = {"positions": self.followed.get("positions") or {}, "may_repeat": self.followed.get("may_repeat")}
        if pod is None or (self.in_triggerer and self.formatter is not None):
            return {"containers": [], **followed}
        raw = api.sanitize_for_serialization(pod)
        return {
            "containers": self._containers(pod),
            "with_name": self.with_name,
            "masked": masked_words(raw, lambda text: str(redact(text))) if self.in_triggerer else {},
            **followed,
        }

    def tell(self, container: str, text: str, at: datetime | None) -> None:
        """Write a line, and hand it to `on_line`."""
        log_line(self.log.log, container, text, with_name=self.with_name, formatter=self.formatter)
        if self.on_line is not None and text:
            self.on_line(container, text, at)

    def write_rest(
        self, pod: V1Pod, state: PodState, error: GpuError | None, *, api: ApiClient, setbacks: Setbacks
    ) -> None:
        """Write what was not followed of the log; where it cannot be read for minutes, say that it is not whole.

        Args:
            pod, state: The pod, as it is now.
            error: How it ended.
            api: The cluster.
            setbacks: Those of this pod, with the one that it would be if the log cannot be read.

        Raises:
            GpuError: It may be read later.
        """
        if not self.get_logs or (isinstance(error, PodPreempted) and end_of(state) is None):
            return
        started = {one.name for one in (*state.others, state.base) if one is not None and one.started_at is not None}
        rest = LogRest(self.followed)
        try:
            rest.write(api, pod, [name for name in self._containers(pod) if name in started], self.tell)
        except GpuError as unread:
            if not isinstance(error, PodPreempted) and setbacks.may_pass(unread) and setbacks.lasted < _WITHIN:
                raise
            self.log.warning("The rest of the pod's log could not be read, and is left out: %s", unread)
        finally:
            self.followed = {"positions": rest.positions, "may_repeat": False}

    def _containers(self, pod: V1Pod) -> list[str]:
        return logged_containers(pod.spec, self.containers, self.init_containers)
