"""How long after the last GPU pod's end the call comes that takes the last machine away: what idle GPUs cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes import client, config, watch

from gpu_sandbox.leftovers import GPU
from gpu_sandbox.sandbox import Sandbox

LONGEST = 120.0
"""Seconds. It takes a few where nothing else runs, as the demonstration's report shows. An idle node that is left to an
autoscaler stays for ten minutes."""
_RELEASES = ("autoscaling:TerminateInstanceInAutoScalingGroup", "compute:DeleteInstances")


class ReleaseDelay:
    """What was seen while the tasks of a night ran."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._over = threading.Event()
        self._last_pod = 0.0

    @property
    def seconds(self) -> float:
        """From the last GPU pod's end to the last release. AssertionError where there was neither."""
        cloud = self._sandbox.aws if self._sandbox.platform == "eks" else self._sandbox.google
        called_at = cloud.called_at
        released = max((called_at[name] for name in _RELEASES if name in called_at), default=0.0)
        assert self._last_pod, "no pod with a GPU has ended"
        assert self._last_pod < released, "nothing was released after the last pod"
        return released - self._last_pod

    def look_all_the_time(self) -> None:
        with config.new_client_from_config(str(self._sandbox.kubeconfig)) as api:
            list_pods = client.CoreV1Api(api).list_pod_for_all_namespaces
            watching = watch.Watch()
            watching.resource_version = list_pods().metadata.resource_version
            while not self._over.is_set():
                since = {"resource_version": watching.resource_version, "timeout_seconds": 1}
                for event in watching.stream(list_pods, **since):
                    if _has_gpu(event["object"]):
                        self._last_pod = max(self._last_pod, _ended_at(event))

    def stop(self) -> None:
        self._over.set()


def _has_gpu(pod: client.V1Pod) -> bool:
    return pod.spec.node_name is not None and any(
        GPU in ((container.resources and container.resources.limits) or {}) for container in pod.spec.containers
    )


def _ended_at(event: dict[str, Any]) -> float:
    """The end of the pod's last container, in seconds since the epoch; 0 where one still runs."""
    states = [status.state for status in event["object"].status.container_statuses or ()]
    if states and all(state.terminated for state in states):
        return float(max(state.terminated.finished_at.timestamp() for state in states))
    return time.time() if event["type"] == "DELETED" else 0.0


@contextmanager
def release_delay(sandbox: Sandbox) -> Iterator[ReleaseDelay]:
    """Look while the body runs; ask for `seconds` after it."""
    delay = ReleaseDelay(sandbox)
    looking = threading.Thread(target=delay.look_all_the_time, daemon=True)
    looking.start()
    try:
        yield delay
    finally:
        delay.stop()
        looking.join()
