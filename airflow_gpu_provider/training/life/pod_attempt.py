"""PodAttempt: one pod of a task's try: created, waited for, collected and released, in this order."""

from __future__ import annotations

from collections.abc import Iterable

from airflow.sdk.exceptions import AirflowSkipException
from kubernetes.client import ApiClient, V1Pod

from airflow_gpu_provider.cluster.api.threads import in_thread
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import GpuError, GpuHung, GpuIdle, PodDeadline
from airflow_gpu_provider.scaling.wait.retry import Setbacks
from airflow_gpu_provider.training.life.collect import explained, read_result, result_of_gone
from airflow_gpu_provider.training.life.host import PodHost
from airflow_gpu_provider.training.life.store import TaskObjects, TaskPods, as_v1
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt, unless_it_passes
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from airflow_gpu_provider.training.wait.end import end_of
from airflow_gpu_provider.training.wait.pod_wait import PodWait


class PodAttempt(TaskAttempt):
    """The life of one pod."""

    _host: PodHost
    _has_started = False
    _kind_in_words = "pod"

    def _objects_by(self, api: ApiClient) -> TaskObjects:
        return TaskPods(api)

    @property
    def uids(self) -> set[str]:
        uid = self.there["metadata"].get("uid") if self.there is not None else None
        return {uid} if uid else set()

    def start(self) -> None:
        request = self.placed(self._host.unplaced_pod())
        self._host.call_back("on_pod_manifest_created", pod_request=request)
        self._host.show_pod(request)
        pod = self._show(self._find_or_create(self._cluster.api.sanitize_for_serialization(request)))
        self._host.call_back("on_pod_creation", pod=pod)
        self.tell_name()

    @property
    def namespace(self) -> str:
        return str(self._host.unplaced_pod().metadata.namespace)

    def tell_name(self) -> None:
        self._host.push("pod_name", self._meta["name"])
        self._host.push("pod_namespace", self._meta["namespace"])

    def has_succeeded(self) -> bool:
        assert self.there is not None
        end = end_of(PodState.parse(self.there, self._settings.placement.base_container))
        return end is not None and end.error is None

    # -- waiting ---------------------------------------------------------------------------------------------

    def to_stream(self) -> Json | None:
        return self._run.pod_log.to_stream(self.pod)

    def wait(self) -> PodWait:
        return PodWait(
            base_container=self._settings.placement.base_container,
            queue=self._settings.placement.queue,
            **self._of_wait(),
        )

    def read_again(self, watched: WaitOutcome) -> None:
        if raw := self._objects.read(watched.name, watched.namespace, uid=watched.uid):
            self.there = raw
            self._show(raw)

    async def _see(self, there: Iterable[Json]) -> None:
        for raw in there:
            if self._has_started or raw["metadata"].get("uid") not in self.uids:
                continue
            base = PodState.parse(raw, self._settings.placement.base_container).base
            if base is not None and base.status != "waiting":
                self._has_started = True
                await in_thread(self._host.call_back, "on_pod_starting", pod=as_v1(raw))

    # -- its end ---------------------------------------------------------------------------------------------

    def collect(self, watched: WaitOutcome, setbacks: Setbacks) -> object:
        raw = self._objects.read(watched.name, watched.namespace, uid=watched.uid)
        if raw is None:
            self.pod = None
            self._host.show_pod(None)
            return self._collect_gone(watched, setbacks)
        self.there, pod, base = raw, self._show(raw), self._settings.placement.base_container
        state = PodState.parse(raw, base)
        error = explained(self._end(watched, state, setbacks), watched, state, base, self._cluster)
        error = self._settings.preemptions.end(error, state.node)
        self._run.pod_log.write_rest(raw, state, error, api=self._cluster.api, setbacks=setbacks)
        result = None
        if self._settings.has_result:
            extract = self._host.extract_xcom
            result, error = read_result(raw, state, error, watched, base=base, cluster=self._cluster, extract=extract)
        self._cluster.gpu_health.take_end(error, self._identity.key)
        try:
            self._conclude(pod, raw, state, error, result, watched)
        except Exception as failure:
            is_collected_again = isinstance(failure, GpuError) and not self.is_released
            if error is None or is_collected_again or isinstance(failure, AirflowSkipException):
                raise
            self.log.exception("After the end of pod %s", watched.name)
            self.release_uncollected()
        if error is not None:
            raise error
        return result

    def _conclude(
        self, pod: V1Pod, raw: Json, state: PodState, error: GpuError | None, result: object, watched: WaitOutcome
    ) -> None:
        """Tell what is known of a pod whose end is decided, and release it."""
        self._tell(watched, [raw])
        if end_of(state) is not None:
            self._host.call_back("on_pod_completion", pod=pod)
            self._host.call_back("on_pod_teardown", pod=pod)
        if error is not None:
            self._push_result_of_failed(result)
        try:
            self._release(pod, result)
        finally:
            is_late = isinstance(error, PodDeadline) and state.started and end_of(state) is None
            if is_late or isinstance(error, GpuIdle | GpuHung):  # it would run on, whatever on_finish_action says
                self._objects.delete(raw)

    def release_uncollected(self) -> None:
        if not self.uids or self.pod is None or self.is_released:
            return
        try:
            self._release(as_v1(self.pod), None)
        except AirflowSkipException:
            raise
        except Exception:
            self.log.exception("After the release of pod %s", self.pod["metadata"]["name"])

    def _end(self, watched: WaitOutcome, state: PodState | None, setbacks: Setbacks) -> GpuError | None:
        end = watched.end(state, self._cluster.now())
        return end.error if end is not None else unless_it_passes(watched, setbacks)

    def _collect_gone(self, watched: WaitOutcome, setbacks: Setbacks) -> object:
        base = self._settings.placement.base_container
        error = explained(self._end(watched, None, setbacks), watched, None, base, self._cluster)
        self._tell(watched, [])
        if error is not None:
            raise error
        return result_of_gone(watched) if self._settings.has_result else None

    def _release(self, pod: V1Pod, result: object) -> None:
        self.is_released = True
        self._host.release_pod(pod, result)
