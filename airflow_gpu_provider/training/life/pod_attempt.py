"""PodAttempt: one pod of a task's try: created, waited for, collected and released, in this order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from airflow.sdk.exceptions import AirflowSkipException
from kubernetes.client import V1ObjectMeta, V1Pod

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError, GpuIdle
from airflow_gpu_provider.scaling.wait.retry import Setbacks, call_with_retries
from airflow_gpu_provider.scaling.wait.wait_loop import Narrator
from airflow_gpu_provider.training.life.collect import explained, read_result, result_of_gone
from airflow_gpu_provider.training.life.creation import CREATE_WITHIN, find_or_create
from airflow_gpu_provider.training.life.store import attempt_of
from airflow_gpu_provider.training.life.task_attempt import Found, TaskAttempt
from airflow_gpu_provider.training.wait.end import PodEnd, end_of
from airflow_gpu_provider.training.wait.pod_wait import PodWait
from airflow_gpu_provider.training.wait.wait_outcome import WaitOutcome
from airflow_gpu_provider.training.watch.following import PodFollowing


class PodAttempt(TaskAttempt):
    """The life of one pod."""

    following = PodFollowing()

    _to_collect: V1Pod | None = None  # only its name: an interrupted process may not have read it

    @property
    def what(self) -> str:
        return f"pod {self.pod.metadata.name}" if self.pod is not None else "no pod"

    @property
    def uids(self) -> set[str]:
        known = (self.pod, self._to_collect)
        return {pod.metadata.uid for pod in known if pod is not None and pod.metadata.uid}

    def adopt(self, watched: WaitOutcome) -> None:
        meta = V1ObjectMeta(name=watched.name, namespace=watched.namespace, uid=watched.uid)
        self._to_collect = V1Pod(metadata=meta)

    # -- what is there already -------------------------------------------------------------------------------

    def newest_of_try(self, namespace: str) -> Found | None:
        pod = self._cluster.pods.newest_of_try(namespace, self.owner)
        return Found(name=pod.metadata.name, uid=pod.metadata.uid, number=attempt_of(pod)) if pod is not None else None

    def delete_left(self, namespace: str) -> set[str]:
        there = self._cluster.pods.of_task(namespace, self.owner)
        for left in there:
            self._cluster.pods.delete(left)
        return {pod.metadata.uid for pod in there}

    def kill(self) -> None:
        if (pod := self.pod or self._to_collect) is not None:
            self._cluster.pods.delete_from_signal_handler(pod, grace_seconds=self._task.grace_seconds)

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        request = self._task.build()
        self._task.call_back("on_pod_manifest_created", pod_request=request)
        pod = self._task.create(request)
        self._set_pod(pod)
        self._task.call_back("on_pod_creation", pod=pod)
        self._task.push("pod_name", pod.metadata.name)
        self._task.push("pod_namespace", pod.metadata.namespace)

    def create(self, request: V1Pod) -> V1Pod:
        """Return this try's pod, created now unless an interrupted try did so; all earlier pods are ended first.

        A refusal that may be transient, such as an exhausted quota, is tolerated for some minutes (see `patience`).
        """

        def once() -> V1Pod:
            # Once the request is known, on_kill has a name to delete, whether or not the answer to it arrives.
            return find_or_create(request, self.owner, self._task, on_request=self._set_pod)

        pod = call_with_retries(once, within=CREATE_WITHIN, say=self._task.log.warning)
        self.record = replace(self.record, number=attempt_of(pod))
        return pod

    # -- waiting ---------------------------------------------------------------------------------------------

    def to_stream(self) -> dict[str, Any] | None:
        return self._task.pod_log.to_stream(self.pod, self._cluster.api)

    def wait(self, until: Literal["started", "ended"] = "ended") -> PodWait:
        assert self.pod is not None
        return PodWait(
            namespace=self.pod.metadata.namespace,
            name=self.pod.metadata.name,
            uid=self.pod.metadata.uid,
            base_container=self._cluster.base_container,
            until=until,
            queue=self._task.placement.queue,
            **self._limits(self.pod.metadata.creation_timestamp),
        )

    def watch_here(self) -> WaitOutcome:
        wait = self.wait("started")
        narrator = Narrator(self._task.log.info, started=wait.started)
        watched = self._watch(wait, narrator)
        if watched.error is None or watched.container_ended:
            self._task.call_back("on_pod_starting", pod=self.pod)
        is_over = watched.error is not None or watched.container_ended
        return watched if is_over else self._watch(self.wait("ended"), narrator)

    # -- its end ---------------------------------------------------------------------------------------------

    def collect(self, watched: WaitOutcome, setbacks: Setbacks) -> Any:
        pod = self._cluster.pods.read(watched.name, watched.namespace, uid=watched.uid or None)
        self._set_pod(pod)
        state = self._cluster.state(pod) if pod is not None else None
        error = explained(self._end(watched, state, setbacks).error, watched, pod, self._cluster)
        if pod is None or state is None:
            return self._collect_gone(error, watched)
        self._task.pod_log.write_rest(pod, state, error, api=self._cluster.api, setbacks=setbacks)
        result = None
        if self._task.has_result:
            result, error = read_result(
                pod, state, error, watched, cluster=self._cluster, extract=self._task.extract_result
            )
        try:
            self._conclude(pod, state, error, result, watched)
        except Exception as failure:
            is_collected_again = isinstance(failure, GpuError) and not self.is_released
            if error is None or is_collected_again or isinstance(failure, AirflowSkipException):
                raise
            self._task.log.exception("After the end of pod %s", watched.name)
            self.release_uncollected()
        if error is not None:
            raise error
        return result

    def _conclude(self, pod: V1Pod, state: PodState, error: GpuError | None, result: Any, watched: WaitOutcome) -> None:
        """Tell what is known of a pod whose end is decided, and release it."""
        self._tell_timeline(watched.timeline)
        self._tell_use(watched.use, [pod])
        if end_of(state) is not None:
            self._task.call_back("on_pod_completion", pod=pod)
            self._task.call_back("on_pod_teardown", pod=pod)
        if error is not None:
            self._push_result_of_failed(result)
        if isinstance(error, GpuIdle):  # it would keep holding them, whatever on_finish_action says
            self._cluster.pods.delete(pod)
        self._release(pod, result)

    def release_uncollected(self) -> None:
        if self.pod is None or not self.pod.metadata.uid or self.is_released:
            return
        try:
            self._release(self.pod, None)
        except AirflowSkipException:
            raise
        except Exception:
            self._task.log.exception("After the release of pod %s", self.pod.metadata.name)

    def _end(self, watched: WaitOutcome, state: PodState | None, setbacks: Setbacks) -> PodEnd:
        end = watched.end(state, self._cluster.now())
        if end is None:
            assert watched.error is not None
            if setbacks.may_pass(watched.error):
                raise watched.error
            end = PodEnd(error=watched.error)
        return end

    def _collect_gone(self, error: GpuError | None, watched: WaitOutcome) -> Any:
        self._tell_timeline(watched.timeline)
        self._tell_use(watched.use, [])
        if error is not None:
            raise error
        return result_of_gone(watched) if self._task.has_result else None

    def _release(self, pod: V1Pod, result: Any) -> None:
        self.is_released = True
        self._task.release(pod, result)
