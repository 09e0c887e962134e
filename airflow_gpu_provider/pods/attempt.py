"""PodAttempt: one pod of a task's try: created, waited for, collected and released, in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pods.collect import explained, read_result, result_of_gone
from airflow_gpu_provider.pods.creation import CREATE_WITHIN, check_request, find_or_create, placed
from airflow_gpu_provider.pods.deadline import PodDeadlines
from airflow_gpu_provider.pods.end import PodEnd, end_of
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.pods.placement import check_gpus
from airflow_gpu_provider.pods.preemptions import Attempt
from airflow_gpu_provider.pods.store import attempt_of
from airflow_gpu_provider.pods.task import PodTask
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.pods.wait import PodWait, phase_in_words
from airflow_gpu_provider.pods.watch_here import watch_here
from airflow_gpu_provider.scaling.call_with_retries import call_with_retries
from airflow_gpu_provider.scaling.setbacks import Setbacks, persistently
from airflow_gpu_provider.scaling.wait_loop import Narrator


class PodAttempt:
    """The life of one pod.

    Args:
        task: For whom.
        owner: Returns whose pod it is; asks Airflow.
        record: Which of the try's pods it is.
    """

    def __init__(self, task: PodTask, owner: Callable[[], Ownership], record: Attempt) -> None:
        self._task = task
        self._cluster = task.cluster
        self._owner_of_try = owner
        self.record = record
        self.pod: V1Pod | None = None
        self.phases: Sequence[Mapping[str, Any]] = ()
        self._is_released = False

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the pod, and tell Airflow its name."""
        request = self._task.build()
        self._task.call_back("on_pod_manifest_created", pod_request=request)
        pod = self._task.create(request)
        self._set_pod(pod)
        self._task.call_back("on_pod_creation", pod=pod)
        self._task.push("pod_name", pod.metadata.name)
        self._task.push("pod_namespace", pod.metadata.namespace)

    def request(self, build: Callable[[], V1Pod]) -> V1Pod:
        """Return the pod to create: what `build` returns, checked and placed.

        Errors that may be transient are tolerated for some minutes.
        """

        def once() -> V1Pod:
            check_gpus(self._cluster.pool, self._task.placement.gpus)
            pod = build()
            check_request(pod, self._task, is_wanted=lambda: self.deadlines.is_wanted)
            return placed(pod, self._task, self.owner, self.deadlines)

        return call_with_retries(once, within=CREATE_WITHIN, say=self._task.log.warning)

    def create(self, request: V1Pod) -> V1Pod:
        """Return this try's pod, created now unless the try was interrupted before; all earlier pods end first.

        A refusal that may be transient is tolerated for some minutes (see `patience`): a used-up quota, say.
        """

        def once() -> V1Pod:
            # Once the request is known, on_kill has a name to delete, whether or not the answer to it arrives.
            return find_or_create(request, self.owner, self._task, on_request=self._set_pod)

        pod = call_with_retries(once, within=CREATE_WITHIN, say=self._task.log.warning)
        self.record = replace(self.record, number=attempt_of(pod))
        return pod

    @property
    def owner(self) -> Ownership:
        return replace(self._owner_of_try(), attempt=self.record.number)

    @cached_property
    def deadlines(self) -> PodDeadlines:
        return PodDeadlines(
            api=self._cluster.api,
            clock=self._cluster.clock,
            key=self.owner.key,
            max_runtime=self._cluster.pool.max_runtime,
            execution_timeout=self._task.execution_timeout,
            started_at=self._task.started_at,
            at_latest=self.record.deadline,
        )

    def _set_pod(self, pod: V1Pod | None) -> None:
        self.pod = pod
        self._task.on_pod(pod)

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, until: Literal["started", "ended"] = "ended") -> PodWait:
        """Return the wait for the pod, which is known by now."""
        assert self.pod is not None
        created_at = self.pod.metadata.creation_timestamp or self._cluster.clock.now()
        deadline = self.deadlines.of_pod(created_at)
        self.record = self.record.until(deadline)
        return PodWait(
            namespace=self.pod.metadata.namespace,
            name=self.pod.metadata.name,
            uid=self.pod.metadata.uid,
            base_container=self._cluster.base_container,
            started=created_at,
            schedule_seconds=self._task.schedule_seconds,
            start_seconds=self._task.start_seconds,
            deadline=deadline,
            until=until,
            is_covered=self.deadlines.is_covered,
        )

    def watch_here(self) -> Watched:
        """Wait in this process until the pod has ended, with its log."""
        wait = self.wait("started")
        narrator = Narrator(self._task.log.info, started=wait.started)
        watched = self._watch(wait, narrator)
        if watched.error is None or watched.container_ended:
            self._task.call_back("on_pod_starting", pod=self.pod)
        is_over = watched.error is not None or watched.container_ended
        return watched if is_over else self._watch(self.wait("ended"), narrator)

    def _watch(self, wait: PodWait, narrator: Narrator) -> Watched:
        owner = self.owner.writer
        watch = partial(watch_here, wait, self.pod, self._cluster, self._task.pod_log, owner=owner, narrator=narrator)
        return self._task.stop.run(persistently(watch, until=wait.deadline, narrator=narrator))

    # -- its end ---------------------------------------------------------------------------------------------

    def collect(self, watched: Watched, setbacks: Setbacks) -> Any:
        """Decide how the pod ended, collect what it has left, release it, and then return its result or raise.

        Args:
            watched: The wait for it.
            setbacks: Those of the try, with the one that this would be.

        Raises:
            GpuError: How the pod ended. Or that it may still run, or could not be collected: then it is untouched.
        """
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
        self._tell_timeline(watched.timeline)
        if end_of(state) is not None:
            self._task.call_back("on_pod_completion", pod=pod)
            self._task.call_back("on_pod_teardown", pod=pod)
        self._release(pod, result)
        if error is not None:
            raise error
        return result

    def let_go(self) -> None:
        """Release a pod that is not collected, where it is known and that has not been done."""
        if self.pod is not None and self.pod.metadata.uid and not self._is_released:
            self._release(self.pod, None)

    def _end(self, watched: Watched, state: PodState | None, setbacks: Setbacks) -> PodEnd:
        end = watched.end(state, self._cluster.now())
        if end is None:
            assert watched.error is not None
            if setbacks.may_pass(watched.error):
                raise watched.error
            end = PodEnd(error=watched.error)
        return end

    def _collect_gone(self, error: GpuError | None, watched: Watched) -> Any:
        self._tell_timeline(watched.timeline)
        if error is not None:
            raise error
        return result_of_gone(watched) if self._task.has_result else None

    def _tell_timeline(self, phases: Sequence[Mapping[str, Any]]) -> None:
        if not phases:
            return
        self.phases = phases
        for phase in phases:
            self._task.log.info("  %s", phase_in_words(phase))
        whole = self.record.whole_timeline(phases) if self.record.number > 1 else phases
        self._task.push("timeline", [*map(dict, whole)])

    def _release(self, pod: V1Pod, result: Any) -> None:
        self._is_released = True
        self._task.release(pod, result)
