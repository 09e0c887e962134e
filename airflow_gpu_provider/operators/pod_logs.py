"""A pod's log in a worker: followed while it waits, the rest of what a trigger has streamed, and its last lines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults
from kubernetes.client import ApiClient, CoreV1Api, V1Pod, V1PodSpec
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from airflow_gpu_provider.cluster.pod_log import LineSplitter, LogReader, positions_from_record
from airflow_gpu_provider.cluster.rest import TIMEOUT
from airflow_gpu_provider.triggers.pod_log import REPEATED

LAST_LINES = 100
"""How many are read: a traceback, and what libraries say after it."""

_REST_WITHIN = 15.0
_READ_ATTEMPTS = 3
_NO_LOG = (400, 404)

_log = logging.getLogger(__name__)


@contextmanager
def followed(follow: Callable[[], None]) -> Iterator[None]:
    """Run `follow`, which reads a log to its end, beside the block; its end comes soon after the block's."""

    def read() -> None:
        try:
            follow()
        except (ApiException, HTTPError) as error:
            _log.warning("The pod's log could not be read to its end: %s", error)

    thread = threading.Thread(target=read, name="pod-log", daemon=True)
    thread.start()
    yield
    thread.join(timeout=_REST_WITHIN)


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


def write_rest(
    api: ApiClient, pod: V1Pod, containers: Iterable[str], rest: Mapping[str, Any], tell: Callable[[str, str], None]
) -> None:
    """Write what there is of the containers' logs, from where the trigger has left off (`rest`: PodLogs.rest).

    `tell` takes a container's name and a line.

    Raises:
        ApiException, HTTPError: A log cannot be read, or not to its end.
    """
    positions = positions_from_record(rest.get("positions") or {})
    may_repeat = bool(rest.get("may_repeat"))
    for name in containers:
        for text in _new_lines(api, pod, name, LogReader(positions.get(name))):
            if may_repeat:
                may_repeat = False
                _log.info(REPEATED)
            tell(name, text)


def _new_lines(api: ApiClient, pod: V1Pod, container: str, reader: LogReader) -> Iterator[str]:
    for attempt in range(1, _READ_ATTEMPTS + 1):
        try:
            for line in _lines(api, pod, container, reader.begin()):
                text = reader.take(line)
                if text is not None:
                    yield text
            return
        except ApiException as error:
            if error.status not in _NO_LOG:
                raise
            _log.info("Container %s has no log: %s", container, error.reason)
            return
        except HTTPError:
            if attempt == _READ_ATTEMPTS:
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
