"""A pod's log: followed into the task's log while a worker waits, and its last lines when the pod has failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kubernetes.client import CoreV1Api, V1Pod
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

LAST_LINES = 100
"""How many are read: a traceback, and what libraries say after it."""

_REST_WITHIN = 15.0

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
