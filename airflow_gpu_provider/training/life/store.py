"""TaskPods: the pods of one task in the cluster - found by owner, created once, deleted only if still the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.cncf.kubernetes.utils.pod_manager import PodManager
from kubernetes.client import CoreV1Api, V1DeleteOptions, V1Pod, V1Preconditions
from kubernetes.client.exceptions import ApiException

from airflow_gpu_provider.cluster.api_errors import ObjectChanged, ObjectNotFound, mapped
from airflow_gpu_provider.cluster.clock import Clock
from airflow_gpu_provider.cluster.nodes import read_node
from airflow_gpu_provider.cluster.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION, PodState
from airflow_gpu_provider.cluster.pods import STUCK_AFTER, mark_collected
from airflow_gpu_provider.cost.ledger import record_pods
from airflow_gpu_provider.errors import GpuError, PermissionDenied, PodFailed
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.wait.pod_wait import UNCONFIRMED

_NAME_FREED_IN = 60.0
_LOOK_EVERY = 1.0

_log = logging.getLogger(__name__)


class TaskPods:
    """Reads and writes a task's pods with the hook's client, and creates them as KubernetesPodOperator does."""

    def __init__(self, hook: PoolHook, manager: PodManager) -> None:
        self._hook = hook
        self._manager = manager

    def of_task(self, namespace: str, owner: Ownership) -> list[V1Pod]:
        """Return the task's pods, those of earlier tries too."""
        with mapped("list", "pods"):
            return list(self._hook.core_v1_client.list_namespaced_pod(namespace, label_selector=owner.selector).items)

    def newest_of_try(self, namespace: str, owner: Ownership) -> V1Pod | None:
        """Return the pod of this try's latest attempt, if there is one; pods being deleted are left out."""
        pods = (pod for pod in self.of_task(namespace, owner) if _is_of_try(pod, owner))
        return max((pod for pod in pods if not pod.metadata.deletion_timestamp), key=attempt_of, default=None)

    def read(self, name: str, namespace: str, *, uid: str | None) -> V1Pod | None:
        """Return the pod as it is now; None if it does not exist, or another pod has its name.

        Raises:
            GpuError: It cannot be read.
        """
        with mapped("get", "pods"):
            try:
                pod = self._hook.get_pod(name, namespace)
            except ApiException as error:
                if error.status == 404:
                    return None
                raise
        return pod if uid is None or pod.metadata.uid == uid else None

    def await_end(self, pods: Iterable[V1Pod], clock: Clock, say: Callable[[str], None]) -> None:
        """Wait until none of these deleted pods can still run: two pods of one task would write the same checkpoint.

        It takes at most a pod's grace period, and half a minute more if its node does not answer.

        Raises:
            GpuError: A pod or its node cannot be read.
        """
        for pod in pods:
            told = False
            while (state := self._state(pod)) is not None and self._may_still_run(state, clock):
                if not told:
                    told = True
                    until = f", its grace period is over at {state.gone_by:%H:%M:%S} UTC" if state.gone_by else ""
                    say(f"Waiting for pod {state.name} of an earlier try or attempt to end{until}.")
                clock.sleep(_LOOK_EVERY)

    def _state(self, pod: V1Pod) -> PodState | None:
        now = self.read(pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)
        api = self._hook.core_v1_client.api_client
        return PodState.parse(api.sanitize_for_serialization(now), "") if now is not None else None

    def _may_still_run(self, state: PodState, clock: Clock) -> bool:
        if state.node is None:
            return False
        node: bool | None
        try:
            node = read_node(self._hook.core_v1_client.api_client, state.node).ready
        except ObjectNotFound:
            node = None
        except PermissionDenied:
            node = True
        return may_still_run(state, node_is_ready=node, now=clock.now())

    def create(self, request: V1Pod, owner: Ownership, *, grace_seconds: int) -> V1Pod:
        """Create the pod, or return what an earlier attempt with a lost answer has created.

        Raises:
            PodFailed: Another pod has the name, and still has it a minute after its grace period.
        """
        give_up_at = time.monotonic() + _NAME_FREED_IN + grace_seconds
        while True:
            try:
                with mapped("create", "pods"):
                    return self._manager.create_pod(request)
            except ObjectChanged:
                pass
            # The answer to an earlier attempt was lost, or random_name_suffix=False and an old pod is still ending.
            there = self.read(request.metadata.name, request.metadata.namespace, uid=None)
            if there is not None and _is_of_attempt(there, owner) and not there.metadata.deletion_timestamp:
                return there
            if time.monotonic() > give_up_at:
                raise PodFailed(
                    f"A pod named {request.metadata.name} already exists in {request.metadata.namespace}:"
                    f" {_why_there(there)}.",
                    "Delete it, or leave random_name_suffix=True.",
                )
            time.sleep(0.5)

    def delete(self, pod: V1Pod) -> None:
        """Delete the pod that was read; do nothing if it is gone, or if another one has its name."""
        with mapped("delete", "pods"):
            self._manager.delete_pod(pod)

    def note_computed(self, pods: Iterable[Any], share: float, *, sampled: timedelta) -> None:
        """Record, for the bill, the share (0 to 1) of the sampled time in which the pods' GPUs computed.

        The pods are V1Pods, or the JSON of pods.
        """
        api = self._hook.core_v1_client.api_client
        raw = [api.sanitize_for_serialization(pod) for pod in pods]
        record_pods(lambda: api, raw, _log.warning, computed=share, sampled=sampled)

    def delete_from_signal_handler(self, pod: V1Pod, *, grace_seconds: int | None) -> None:
        """Delete with a separate client, since the interrupted code may hold locks; failures are logged."""
        options = {} if grace_seconds is None else {"grace_period_seconds": grace_seconds}
        try:
            client = self._hook.new_client()
            with mapped("delete", "pods"):
                # If the answer to its creation has not arrived, another task's pod may have the name.
                if not pod.metadata.uid:
                    there = client.read_namespaced_pod(pod.metadata.name, pod.metadata.namespace)
                    if _try_of(there) != _try_of(pod):
                        return
                    pod = there
                name, namespace = pod.metadata.name, pod.metadata.namespace
                last = client.delete_namespaced_pod(name, namespace, body=_only(pod, **options))
            _note_use(client, last)  # afterwards: the process may be killed any moment, and a running pod costs more
        except ObjectNotFound:
            return
        except GpuError as error:
            _log.error("Pod %s could not be deleted: %s", pod.metadata.name, error)


class CarefulPodManager(PodManager):
    """Deletes a pod only if it is the one that was read, not another one with its name.

    When it ran is recorded first, for its run's bill.
    """

    @property
    def client(self) -> CoreV1Api:
        return self._client

    def run_pod_async(self, pod: V1Pod, **kwargs: Any) -> V1Pod:
        """Create the pod. The base class logs each refusal with the whole pod; here the caller reports it."""
        body = self._client.api_client.sanitize_for_serialization(pod)
        return self._client.create_namespaced_pod(body=body, namespace=pod.metadata.namespace, **kwargs)

    def delete_pod(self, pod: V1Pod) -> None:
        _note_use(self._client, pod)
        try:
            last = self._client.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, body=_only(pod))
        except ApiException as error:
            if error.status not in (404, 409):
                raise
            return
        if held := self._finalizers_of_ended(last):
            _log.info("Pod %s is deleted, and goes when its finalizer %s is taken off.", pod.metadata.name, held)

    def _finalizers_of_ended(self, deleted: Any) -> str:
        """Return what keeps a deleted pod, if it has ended: its controller takes it off, or is down."""
        raw = self._client.api_client.sanitize_for_serialization(deleted) or {}
        status = raw.get("status")
        # A delete that completes at once returns a Status, whose status is a word.
        has_ended = isinstance(status, dict) and status.get("phase") in ("Succeeded", "Failed")
        return ", ".join(raw["metadata"].get("finalizers") or ()) if has_ended else ""

    def mark_collected(self, pod: V1Pod) -> None:
        """Allow a kept pod's node to be released: its log and result have been read."""
        _note_use(self._client, pod)
        mark_collected(self._client.api_client, pod.metadata.namespace, pod.metadata.name)


def _note_use(client: CoreV1Api, pod: Any) -> None:
    """Record when and where the pod ran."""
    api = client.api_client
    record_pods(lambda: api, [api.sanitize_for_serialization(pod)], _log.warning)


def may_still_run(pod: PodState, *, node_is_ready: bool | None, now: datetime) -> bool:
    """Return True if a container of a deleted pod may still run.

    Args:
        pod: The pod.
        node_is_ready: Whether its node's kubelet reports; None if the node has left the cluster.
        now: By the cluster's clock.
    """
    if pod.phase in ("Succeeded", "Failed") or pod.node is None or node_is_ready is None:
        return False
    if pod.gone_by is None:
        return True
    return now < pod.gone_by + (STUCK_AFTER if node_is_ready else UNCONFIRMED)


def _why_there(pod: V1Pod | None) -> str:
    if pod is None or not pod.metadata.deletion_timestamp:
        return "it belongs to another task"
    held = ", ".join(pod.metadata.finalizers or ())
    return f"it is deleted, and kept by its finalizer {held}" if held else "it is still being deleted"


def attempt_of(pod: V1Pod) -> int:
    """Return its attempt number within the try."""
    return int((pod.metadata.annotations or {}).get(ATTEMPT_ANNOTATION, 1))


def _try_of(pod: V1Pod) -> str | None:
    try_id: str | None = (pod.metadata.annotations or {}).get(OWNER_ANNOTATION)
    return try_id


def _is_of_try(pod: V1Pod, owner: Ownership) -> bool:
    return _try_of(pod) == owner.try_id


def _is_of_attempt(pod: V1Pod, owner: Ownership) -> bool:
    return _is_of_try(pod, owner) and attempt_of(pod) == owner.attempt


def _only(pod: V1Pod, **options: Any) -> V1DeleteOptions:
    preconditions = V1Preconditions(uid=pod.metadata.uid) if pod.metadata.uid else None
    return V1DeleteOptions(preconditions=preconditions, **options)
