"""A pod's log in a worker: what of it is wanted, the rest of what was followed, and a container's last lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults
from kubernetes.client import ApiClient, CoreV1Api, V1Pod, V1PodSpec
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from airflow_gpu_provider.cluster.api_errors import mapped
from airflow_gpu_provider.cluster.pod_log import LineSplitter, LogReader, positions_from_record, positions_to_record
from airflow_gpu_provider.cluster.rest import TIMEOUT
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError
from airflow_gpu_provider.pods.followed_log import REPEATED, ROTATED, Tell

LAST_LINES = 100
"""How many are read: a traceback, and what libraries say after it."""

_READ_ATTEMPTS = 3
_NO_LOG = (400, 404)

_log = logging.getLogger(__name__)


def logged_containers(spec: V1PodSpec, containers: Any, init_containers: Any) -> list[str]:
    """Return the names of the containers whose logs are wanted, init containers first.

    Args:
        spec: The pod's.
        containers: KubernetesPodOperator's `container_logs`: a name, several, or True for all but the XCom sidecar.
        init_containers: Its `init_container_logs`, likewise.
    """
    own = [one.name for one in spec.containers or () if one.name != PodDefaults.SIDECAR_CONTAINER_NAME]
    first = [one.name for one in spec.init_containers or ()]
    return [*_chosen(init_containers, first), *_chosen(containers, own)]


def _chosen(wanted: Iterable[str] | str | bool | None, there: list[str]) -> list[str]:
    if wanted is True:
        return there
    names = [wanted] if isinstance(wanted, str) else list(wanted or ())
    for name in names:
        if name not in there:
            _log.error("The pod has no container %s, whose log is wanted", name)
    return [name for name in names if name in there]


class LogRest:
    """The rest of a pod's log, from where it was followed to.

    Args:
        followed: What PodLogs.rest said; empty: from the beginning.
    """

    def __init__(self, followed: Mapping[str, Any]) -> None:
        positions = positions_from_record(followed.get("positions") or {})
        self._readers = {name: LogReader(position) for name, position in positions.items()}
        self._may_repeat = bool(followed.get("may_repeat"))

    @property
    def positions(self) -> dict[str, Any]:
        """How far the log is written, for the next reader."""
        return positions_to_record({name: reader.position for name, reader in self._readers.items()})

    def write(self, api: ApiClient, pod: V1Pod, containers: Iterable[str], tell: Tell) -> None:
        """Write what there is now of the containers' logs; it does not wait for more.

        Raises:
            GpuError: A log cannot be read, or not to its end. What was written is not written again.
        """
        for name in containers:
            reader = self._readers.setdefault(name, LogReader())
            for text in _new_lines(api, pod, name, reader):
                if self._may_repeat:
                    self._may_repeat = False
                    _log.info(REPEATED)
                if reader.is_after_gap:
                    _log.info(ROTATED)
                tell(name, text, reader.at)


def _new_lines(api: ApiClient, pod: V1Pod, container: str, reader: LogReader) -> Iterator[str]:
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
                _log.info("Container %s has no log.", container)
                return
            if not isinstance(error, ClusterUnreachable) or attempt == _READ_ATTEMPTS:
                raise
        time.sleep(attempt)


def _lines(api: ApiClient, pod: V1Pod, container: str, parameters: Mapping[str, str]) -> Iterator[bytes]:
    # By hand: CoreV1Api knows no sinceTime, and sinceSeconds counts from the node's clock.
    response = api.call_api(
        f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/log",
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


def last_lines(client: CoreV1Api, pod: V1Pod, container: str) -> list[str]:
    """Return the container's last lines of log, blank ones left out; none where they cannot be read."""
    try:
        answer = client.read_namespaced_pod_log(
            pod.metadata.name,
            pod.metadata.namespace,
            container=container,
            tail_lines=LAST_LINES,
            _preload_content=False,
        )
        text = answer.data.decode(errors="replace")
    except (ApiException, HTTPError) as failure:
        _log.debug("No last lines of pod %s: %s", pod.metadata.name, failure)
        return []
    return [line for line in text.splitlines() if line.strip()]
