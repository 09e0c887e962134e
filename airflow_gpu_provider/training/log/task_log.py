"""TaskLog: the log of a task's pods, as written by its worker: which containers, in which form, and up to where."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults
from airflow.providers.common.compat.sdk import redact
from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from airflow_gpu_provider.cluster.api.api_errors import mapped
from airflow_gpu_provider.cluster.api.rest import TIMEOUT
from airflow_gpu_provider.cluster.model.pod_log import (
    LineSplitter,
    LogReader,
    lines_of,
    log_line,
    positions_from_record,
    positions_to_record,
    printed,
)
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import LOST, ClusterUnreachable, GpuError
from airflow_gpu_provider.scaling.wait.retry import Setbacks
from airflow_gpu_provider.training.log.followed_log import REPEATED, ROTATED, WriteLine
from airflow_gpu_provider.training.log.trigger_log import masked_words
from airflow_gpu_provider.training.wait.end import end_of

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

LAST_LINES = 200
"""How many are read: a traceback, and what libraries say after it. JAX lists the largest buffers there."""

WantedContainers = Iterable[str] | str | bool | None
"""Names of containers, or True for all."""

_READ_ATTEMPTS = 3
_NO_LOG = (400, 404)
_WITHIN = timedelta(minutes=2)
"""How long to try to read the rest of a log; after that its node counts as unreachable, and the pod's end stands."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class TaskLog:
    """The log of one pod after another.

    Attributes:
        log: The task's own.
        containers, init_containers: The containers whose logs are wanted: see logged_containers.
        get_logs: False: none.
        with_name: The container's name comes before each line.
        formatter: Makes a line of a container's name and its text. Default: "[name] text".
        in_triggerer: The triggerer streams it, and the rest is written here.
        on_line: Also takes each line that has text.
        shown_as: Returns what a container is called in the log. Default: its name.
        followed: How far the present pod's is written: PodLogs.rest.
        is_left_to_worker: Nothing is streamed by a triggerer.
    """

    log: Logger
    containers: WantedContainers
    init_containers: WantedContainers
    get_logs: bool
    with_name: bool
    formatter: Callable[[str, str], str] | None
    in_triggerer: bool
    on_line: WriteLine | None = None
    shown_as: Callable[[str], str] = str
    followed: Json = field(default_factory=dict)
    is_left_to_worker: bool = False

    def to_stream(self, pod: Json | None) -> Json | None:
        """Return what PodLogs streams of the pod; in a triggerer nothing that needs `formatter`, a function."""
        if not self.get_logs:
            return None
        followed = self.to_resume()
        if pod is None or self.is_left_to_worker or (self.in_triggerer and self.formatter is not None):
            return {"containers": [], **followed}
        return {
            "containers": self._containers(pod),
            "with_name": self.with_name,
            "masked": masked_words(pod, lambda text: str(redact(text))) if self.in_triggerer else {},
            **followed,
        }

    def to_resume(self) -> Json:
        """Return from where the triggerer goes on, for `to_stream`."""
        how = {key: self.followed.get(key) for key in ("may_repeat", "from_start", "network")}
        return {"positions": self.followed.get("positions") or {}, **how}

    def prepare_next_wait(self, *, is_cleared: bool, has_ended: bool) -> None:
        """Prepare for one more wait for the same pod in the triggerer.

        Args:
            is_cleared: What the triggerer has streamed of it is cleared by Airflow: it is wanted from its beginning.
            has_ended: The pod has; no triggerer streams its log again, and the next worker writes what it lacks.
        """
        if is_cleared:
            self.followed = {"from_start": True, "network": self.followed.get("network")}
        self.is_left_to_worker = has_ended

    def write_line(self, container: str, text: str, at: datetime | None) -> None:
        """Write a line, and hand it to `on_line`."""
        log_line(self.log.log, self.shown_as(container), text, with_name=self.with_name, formatter=self.formatter)
        if self.on_line is not None and text:
            self.on_line(container, text, at)

    def write_rest(
        self, pod: Json, state: PodState, error: GpuError | None, *, api: ApiClient, setbacks: Setbacks
    ) -> None:
        """Write the part of the log that was not followed; if it stays unreadable for minutes, say that it is
        incomplete.

        Args:
            pod, state: The pod, as it is now.
            error: How it ended.
            api: The cluster.
            setbacks: This pod's, including the present one if the log cannot be read.

        Raises:
            GpuError: It could not be read, but may be later.
        """
        if not self.get_logs or (isinstance(error, LOST) and end_of(state) is None):
            return
        started = {one.name for one in (*state.others, state.base) if one is not None and one.started_at is not None}
        positions = positions_from_record(self.followed.get("positions") or {})
        readers = {name: LogReader(position) for name, position in positions.items()}
        try:
            for name in self._containers(pod):
                if name in started:
                    self._write_new(api, state, name, readers.setdefault(name, LogReader()))
        except GpuError as unread:
            if not isinstance(error, LOST) and setbacks.may_pass(unread) and setbacks.lasted < _WITHIN:
                raise
            self.log.warning("The rest of the pod's log could not be read, and is left out: %s", unread)
        finally:  # lines already written are not written again
            reached = positions_to_record({name: reader.position for name, reader in readers.items()})
            self.followed = {**self.followed, "positions": reached}

    def _write_new(self, api: ApiClient, pod: PodState, container: str, reader: LogReader) -> None:
        for text in _new_lines(api, pod, container, reader):
            if self.followed.get("may_repeat"):
                self.followed = {**self.followed, "may_repeat": False}
                _log.info(REPEATED)
            if reader.is_after_gap:
                _log.info(ROTATED)
            self.write_line(container, text, reader.at)

    def _containers(self, pod: Json) -> list[str]:
        return logged_containers(pod["spec"], self.containers, self.init_containers)


def logged_containers(spec: Json, containers: WantedContainers, init_containers: WantedContainers) -> list[str]:
    """Return the names of the containers whose logs are wanted, init containers first.

    Args:
        spec: The pod's.
        containers: KubernetesPodOperator's `container_logs`: a name, several, or True for all but the XCom sidecar.
        init_containers: Its `init_container_logs`, likewise.
    """
    own = [one["name"] for one in spec.get("containers") or () if one["name"] != PodDefaults.SIDECAR_CONTAINER_NAME]
    first = [one["name"] for one in spec.get("initContainers") or ()]
    return [*_chosen(init_containers, first), *_chosen(containers, own)]


def _chosen(wanted: WantedContainers, there: list[str]) -> list[str]:
    if wanted is True:
        return there
    names = [wanted] if isinstance(wanted, str) else list(wanted or ())
    for name in names:
        if name not in there:
            _log.error("The pod has no container %s, whose log is wanted", name)
    return [name for name in names if name in there]


def _new_lines(api: ApiClient, pod: PodState, container: str, reader: LogReader) -> Iterator[str]:
    for attempt in range(1, _READ_ATTEMPTS + 1):
        try:
            with mapped("get", "pods/log"):
                for line in _lines(api, pod, container, reader.begin()):
                    text = reader.take(line)
                    if text is not None:
                        yield text
            return
        except GpuError as error:
            if error.details.get("status") in _NO_LOG:
                _log.info("The log of container %s, or the rest of it, no longer exists.", container)
                return
            if not isinstance(error, ClusterUnreachable) or attempt == _READ_ATTEMPTS:
                raise
        time.sleep(attempt)


def _lines(api: ApiClient, pod: PodState, container: str, parameters: Mapping[str, str]) -> Iterator[bytes]:
    # By hand: CoreV1Api has no sinceTime, and sinceSeconds counts by the node's clock.
    response = api.call_api(
        f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log",
        "GET",
        query_params=[("container", container), *parameters.items()],
        auth_settings=["BearerToken"],
        _preload_content=False,
        _return_http_data_only=True,
        _request_timeout=TIMEOUT,
    )
    splitter = LineSplitter()
    for chunk in response.stream(2**16):
        yield from splitter.feed(chunk)
    yield from splitter.last()


def last_lines(client: CoreV1Api, pod: PodState, container: str) -> list[str]:
    """Return the container's last log lines without blank ones; none if they cannot be read, by the kubelet either."""
    try:
        answer = client.read_namespaced_pod_log(
            pod.name,
            pod.namespace,
            container=container,
            tail_lines=LAST_LINES,
            timestamps=True,
            _preload_content=False,
        )
        splitter, lines = LineSplitter(), deque[bytes](maxlen=LAST_LINES)
        for chunk in answer.stream(2**16):
            lines.extend(splitter.feed(chunk))
        lines.extend(splitter.last())
    except (ApiException, HTTPError) as failure:
        _log.debug("No last lines of pod %s: %s", pod.name, failure)
        return []
    texts = [printed(line) for line in lines]
    if None in texts:
        _log.info("The log of container %s of pod %s is not whole: its kubelet cannot read it.", container, pod.name)
    return lines_of("\n".join(text for text in texts if text is not None))
