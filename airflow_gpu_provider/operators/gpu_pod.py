"""GpuPodOperator: a KubernetesPodOperator that places itself on a GPU pool, and says why when it waits or ends."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import pendulum
from airflow.providers.cncf.kubernetes.callbacks import ExecutionMode
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.utils.pod_manager import OnFinishAction, OnKillAction, PodManager
from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
)
from kubernetes.client import V1Pod
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from airflow_gpu_provider.cluster.api_errors import from_status, mapped
from airflow_gpu_provider.cluster.clock import ServerClock, SystemClock
from airflow_gpu_provider.cluster.demand import list_demand
from airflow_gpu_provider.cluster.informer import connected
from airflow_gpu_provider.cluster.nodes import is_node_there, machine_of
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.cluster.pods import COLLECT_WITHIN
from airflow_gpu_provider.errors import (
    BadGpu,
    ClusterUnreachable,
    GpuError,
    PodDeadline,
    PodFailed,
    PodPreempted,
    PoolSpecError,
    TaskKilled,
)
from airflow_gpu_provider.links import NodeGroupsLink
from airflow_gpu_provider.open_blocks import block_of, current_pool
from airflow_gpu_provider.operators.moved_arguments import MovedArguments
from airflow_gpu_provider.pods.attempts import MAX_PREEMPTIONS, Attempt, OnPreemption, Preemptions
from airflow_gpu_provider.pods.checkpoint import (
    check_claims_reach,
    check_location,
    check_outlives_pod,
    environment,
)
from airflow_gpu_provider.pods.collected_log import last_lines
from airflow_gpu_provider.pods.deadline import PodDeadlines
from airflow_gpu_provider.pods.diagnosis import diagnosed
from airflow_gpu_provider.pods.end import PodEnd, end_of
from airflow_gpu_provider.pods.followed_log import PodLogs
from airflow_gpu_provider.pods.gpu_health import GpuHealth
from airflow_gpu_provider.pods.hook import PoolHook
from airflow_gpu_provider.pods.machine import PodMachine
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.pods.placement import Placement, check_gpus, check_resources, place, resources_of
from airflow_gpu_provider.pods.result import RESULT_FILE, ResultUnread, invalid, parsed, unread
from airflow_gpu_provider.pods.store import CarefulPodManager, TaskPods, attempt_of
from airflow_gpu_provider.pods.task_log import TaskLog
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.pods.wait import PodWait, phase_in_words
from airflow_gpu_provider.pods.watch import watch_pod
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.scaling.call_with_retries import call_with_retries
from airflow_gpu_provider.scaling.open_pool import open_pool
from airflow_gpu_provider.scaling.release_without_sensor import (
    WHEN_KILLED,
    check_nodes_can_come,
    release_without_sensor,
)
from airflow_gpu_provider.scaling.setbacks import Setbacks, persistently
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.triggers.pod import LAST_WORDS_WITHIN, RECORD_VERSION, GpuPodTrigger
from airflow_gpu_provider.workload_placement import idle_gpus_warning

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.cluster.access import ClusterAccess

SCHEDULE_TIMEOUT = timedelta(minutes=30)
STARTUP_TIMEOUT = timedelta(minutes=20)
_DEFER_MARGIN = timedelta(minutes=5)
_CREATE_WITHIN = timedelta(minutes=5)
"""For how long a worker tries to create a pod: a quota that is used up for longer is the task's retries' affair."""


class GpuPodOperator(MovedArguments, KubernetesPodOperator):
    """Run a pod on a GPU pool.

    Every argument of KubernetesPodOperator works. The pod selects the pool's nodes, tolerates their taints, gets its
    GPUs and a /dev/shm in memory; while it waits, the task's log says for what; when it ends, the error says how:
    PodOutOfMemory, GpuOutOfMemory, DriverMissing, BadGpu, PodImageError, PodPreempted, PodDeadline or PodFailed, which
    a `retry_policy` can tell apart.

    Args:
        gpu_pool: The pool. Default: that of the `gpu_nodes` block around it. (Airflow's own `pool` is a slot pool.)
        block_id: Whose demand covers the pod: EnsureGpuPoolOperator's block_id. Default: that of the `gpu_nodes` block
            of this pool around it, or else empty. A pod that no demand covers is demand by itself.
        gpus: GPUs for the base container. Default 1.
        shm_size: Size of /dev/shm, like "8Gi". Default: as much as the container's memory limit, or else the node's
            memory; what is in it counts as the container's memory. "0" leaves the container runtime's 64 MiB.
        schedule_timeout_seconds: How long the pod may wait for a node, node boot included. Time in which the pool has
            all the nodes that it may have does not count: there the pod is queued. Default 30 minutes.
        startup_timeout_seconds: How long it may take from the node to the running container: image, volumes, init
            containers. Default 20 minutes.
        deferrable: Wait in the triggerer. Default True.
        checkpoint: Where the training keeps its checkpoint: a URL like "s3://bucket/folder", or a path at which a
            volume of the pod is mounted. The container finds it, with a folder for this run of this task, in
            AIRFLOW_GPU_CHECKPOINT. Templated. Default None.
        on_preemption: What to do when the pod is taken away (spot loss, eviction, lost node): "resume" starts it again
            on new capacity, without using one of Airflow's retries; "fail" raises PodPreempted. Default: "resume" with
            a checkpoint, else "fail". All pods of a try have one deadline.
        max_preemptions: How often one try may resume. Default 3.
        **kwargs: KubernetesPodOperator's, and those that EksPodOperator and GKEStartPodOperator add to them (see
            moved_arguments). `log_pod_spec_on_failure` is False by default. The connection is the pool's own;
            in_cluster and config_file are not used.

    Raises:
        PoolSpecError: No pool is given, or the pod's own spec contradicts it.
        PoolNotEnsured: Nobody wants nodes of the pool, and it has no node group; no pod is created.
        PodUnschedulable: No machine of the pool is large enough, or a volume is in another zone, or the scheduler
            leaves the pool's free nodes out for its own reason.
        CheckpointUnusable: The checkpoint would be lost with the pod or its node.
        PodOutOfMemory, GpuOutOfMemory, DriverMissing, BadGpu, PodImageError, PodPreempted, PodDeadline, PodFailed: How
            the pod ended.
        TaskKilled: The task was told to stop; the pod is deleted.
    """

    template_fields: Sequence[str] = (*KubernetesPodOperator.template_fields, "gpu_pool", "block_id", "checkpoint")
    operator_extra_links = (NodeGroupsLink(),)
    ui_color = "#d9f2d9"

    def __init__(
        self,
        *,
        gpu_pool: GpuPool | None = None,
        block_id: str | None = None,
        gpus: int = 1,
        shm_size: str | None = None,
        schedule_timeout_seconds: int = int(SCHEDULE_TIMEOUT.total_seconds()),
        startup_timeout_seconds: int = int(STARTUP_TIMEOUT.total_seconds()),
        deferrable: bool = True,
        checkpoint: str | None = None,
        on_preemption: OnPreemption | None = None,
        max_preemptions: int = MAX_PREEMPTIONS,
        log_pod_spec_on_failure: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            schedule_timeout_seconds=schedule_timeout_seconds,
            startup_timeout_seconds=startup_timeout_seconds,
            deferrable=deferrable,
            log_pod_spec_on_failure=log_pod_spec_on_failure,
            **kwargs,
        )
        # The pool of the block around it is nearer than one of default_args.
        self.gpu_pool = self._by_keyword("gpu_pool", gpu_pool, None) or current_pool() or gpu_pool
        if block_id is None:
            block_id = block_of(self.gpu_pool) if isinstance(self.gpu_pool, GpuPool) else ""
        self.block_id = block_id
        self.gpus = gpus
        self.shm_size = shm_size
        self.checkpoint = checkpoint
        self.on_preemption = on_preemption
        self.max_preemptions = max_preemptions
        self._attempt = Attempt()
        self._setbacks = Setbacks()
        self._ownership: Ownership | None = None
        self._pod_deadlines: PodDeadlines | None = None
        self._context: Context | None = None
        self._narrator: Narrator | None = None
        self._phases: Sequence[Mapping[str, Any]] = ()
        self._is_released = False
        if isinstance(self.gpu_pool, GpuPool):
            self._check_moved(self.gpu_pool)
            if self.gpu_pool.is_rendered:
                check_gpus(self.gpu_pool, int(gpus))
                if (resources := resources_of(self.container_resources)) is not None:
                    check_resources(resources, self.gpu_pool)
        if isinstance(checkpoint, str) and not is_template(checkpoint):
            check_location(checkpoint)
        self._preemptions()

    # -- the run ---------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Run the pod; where it is taken away and may resume, run the next one."""
        self._context = context
        self._check_moved(self._rendered_pool())
        with self._leaving_no_nodes(context):
            return self._execute_attempts(context)

    def _execute_attempts(self, context: Context) -> Any:
        while True:
            try:
                with self._typed_errors():
                    return super().execute(context)
            except PodPreempted as error:
                self._prepare_next_attempt(error, context)

    def execute_sync(self, context: Context) -> Any:
        """Run the pod, and wait for it here."""
        try:
            self.execute_async(context)  # creates it, and defers only where that may be
            watched = self._watch_here(context)
            while True:
                try:
                    return self._collect(watched, context)
                except GpuError as error:
                    self._take_setback(error)
                    time.sleep(self._setbacks.pause)
        except BaseException:
            self._let_go(context)
            raise

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on when the trigger has an event: collect log and result, and resume or raise what the pod ended with."""
        self._take_up(event)
        return self._go_on(Watched.of_event(event), context)

    def _take_up(self, event: Mapping[str, Any]) -> None:
        self._attempt = Attempt.from_record(event.get("attempt") or {})
        self._setbacks = Setbacks.from_record(event.get("setbacks") or {})

    def _go_on_here(self, event: Mapping[str, Any], context: Context) -> Any:
        self._take_up(event)
        return super()._go_on_here(event, context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on also where the trigger itself died, or Airflow's own deferral timeout came first."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralTimeout, TaskDeferralError) as error:
            return self._go_on_without_event(error, context)

    def _go_on_without_event(self, error: Exception, context: Context) -> Any:
        """Collect a pod that has ended; delete one that has not, for nobody can wait for it."""
        late = PodDeadline(
            f"The wait for the pod ended in the triggerer: {error}. The pod is deleted.",
            "See the triggerer's log; the next try starts anew.",
        )
        namespace = context["ti"].xcom_pull(key="pod_namespace", map_indexes=context["ti"].map_index)
        namespace = namespace or self.namespace or "default"
        pod = self._pods.newest_of_try(namespace, self._owner(context))
        if pod is None:
            pods = self._pods.of_task(namespace, self._owner(context))
            for left in pods:
                self._pods.delete(left)
            self._release_unattended(context, *pods)
            raise late from error
        self._attempt = Attempt(number=attempt_of(pod))
        self._ownership = None
        meta = pod.metadata
        watched = Watched(name=meta.name, namespace=meta.namespace, uid=meta.uid, saw_end=False, error=late)
        return self._go_on(watched, context)

    def _go_on(self, watched: Watched, context: Context) -> Any:
        self._context = context
        self._task_log.followed = watched.logs
        self._owner(context)
        with self._leaving_no_nodes(context), self._typed_errors():
            try:
                return self._collect(watched, context)
            except PodPreempted as error:
                self._prepare_next_attempt(error, context)
            except GpuError as error:
                try:
                    self._take_setback(error)
                except GpuError:
                    self._let_go(context)
                    raise
                self._defer(watched.wait or self._wait(context, "ended"), context)
            return self._execute_attempts(context)

    def _take_setback(self, error: GpuError) -> None:
        """Count a failure that says nothing of the pod; raise any other one, and one that lasts."""
        now = self._now()
        setbacks = self._setbacks.one_more(now)
        deadline = self._attempt.deadline
        is_late = deadline is not None and now > deadline + COLLECT_WITHIN
        is_unread = isinstance(error, ResultUnread) and setbacks.lasted > COLLECT_WITHIN
        if is_late or is_unread or not setbacks.may_pass(error):
            raise error
        self._setbacks = setbacks
        self.log.warning("%s: %s The pod is looked at again in %.0f s.", type(error).__name__, error, setbacks.pause)

    def _let_go(self, context: Context) -> None:
        """Release a pod that is not collected, where it is known and that has not been done."""
        if self.pod is not None and self.pod.metadata.uid and not self._is_released:
            self.cleanup(pod=self.pod, remote_pod=self.pod, context=context)

    def _preemptions(self) -> Preemptions:
        return Preemptions.of(
            self.on_preemption, max_preemptions=self.max_preemptions, has_checkpoint=self.checkpoint is not None
        )

    def _prepare_next_attempt(self, error: PodPreempted, context: Context) -> None:
        """Forget the pod that was taken away, so that `execute` makes a new one; raise `error` where it may not."""
        cause = error.__cause__
        now = self._now()
        deadline = self._attempt.deadline or self._deadlines(context).of_pod(now)
        if why_not := self._preemptions().why_not(self._attempt, deadline=deadline, now=now):
            self.log.info("The pod is not started again: %s.", why_not)
            raise error from cause
        self._attempt = self._attempt.following(deadline=deadline, phases=self._phases)
        self.log.warning("%s Attempt %s starts on new capacity.", error.what, self._attempt.number)
        self._ownership = self._pod_deadlines = self._narrator = None
        self.pod = self.pod_request_obj = self.remote_pod = None
        self._is_released = False
        self._phases = ()
        self._task_log.followed = {}

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Let nothing out but this package's errors and Airflow's own signals; and nothing green after a kill."""
        try:
            yield
        except ApiException as error:
            raise from_status(error, "use", "pods") from error
        except HTTPError as error:
            raise ClusterUnreachable(
                f"The Kubernetes API server did not answer: {error}.", "Check that the worker can reach it."
            ) from error
        finally:
            self._stop.check()

    @contextmanager
    def _leaving_no_nodes(self, context: Context) -> Iterator[None]:
        """Release the pod's node at the end where no demand covers it: no ScaleDownSensor will."""
        try:
            yield
        except (TaskDeferred, AirflowTaskTimeout):
            raise  # after a timeout Airflow calls on_kill, which deletes the pod first
        except BaseException:
            self._release_unattended(context)
            raise
        self._release_unattended(context)

    def _release_unattended(self, context: Context, *pods: V1Pod) -> None:
        """Do so; an error here is logged, for how the pod ended is what the task is about.

        A task that is told to stop has seconds left, and where that comes in the middle it begins anew: the first thing
        that is written moves the cloud's own switch.
        """
        own = {pod.metadata.uid for pod in (*pods, self.pod) if pod is not None and pod.metadata.uid}
        try:
            self._release(context, own)
        except TaskKilled:
            self._release(context, own)
            raise

    def _release(self, context: Context, own: set[str]) -> None:
        from airflow_gpu_provider.run_identity import lock_holder

        pool, owner = self.gpu_pool, self._ownership
        if owner is None or not isinstance(pool, GpuPool):
            return
        try:
            if any(lease.key == owner.key for lease in list_demand(self.client.api_client, pool.name)):
                return
            self.log.info("No demand covers the pod: the pool's nodes that nobody wants are released.")
            holder = lock_holder(context)
            reconciler = open_pool(pool, owner=owner.writer, holder=holder, say=self.log.info)
            within = WHEN_KILLED if self._stop.error is not None else None
            release_without_sensor(reconciler, owner.key, own=own, say=self.log.info, within=within)
        except GpuError as error:
            self.log.warning("Nodes of pool %s that nobody wants may stay for now: %s", pool.name, error)

    # -- credentials -----------------------------------------------------------------------------------------

    @cached_property
    def hook(self) -> Any:
        return PoolHook(self._rendered_pool())

    @cached_property
    def pod_manager(self) -> PodManager:
        return CarefulPodManager(kube_client=self.client, callbacks=self.callbacks)

    @cached_property
    def _pods(self) -> TaskPods:
        return TaskPods(self.hook, self.pod_manager)

    @cached_property
    def _clock(self) -> ServerClock:
        return ServerClock(self.client.api_client)

    @cached_property
    def _gpu_health(self) -> GpuHealth:
        return GpuHealth(self.client.api_client, self._rendered_pool())

    def _rendered_pool(self) -> GpuPool:
        if not isinstance(self.gpu_pool, GpuPool):
            raise PoolSpecError(
                f"Task {self.task_id}: no GPU pool is given.",
                "Give gpu_pool=, or put the task into a `with gpu_nodes(...)` block.",
            )
        return self.gpu_pool

    # -- the pod ---------------------------------------------------------------------------------------------

    def build_pod_request_obj(self, context: Context | None = None, **kwargs: Any) -> V1Pod:
        """Return the pod to create: KubernetesPodOperator's, placed on the pool."""
        if context is None:
            return self._build(None, **kwargs)
        return call_with_retries(lambda: self._build(context, **kwargs), within=_CREATE_WITHIN, say=self.log.warning)

    def _build(self, context: Context | None, **kwargs: Any) -> V1Pod:
        pool, gpus = self._rendered_pool(), int(self.gpus)
        check_gpus(pool, gpus)
        pod = self._build_unplaced(context, **kwargs)
        placement = Placement(pool=pool, gpus=gpus, base_container=self.base_container_name, shm_size=self.shm_size)
        if context is None:  # a dry run: no task instance, and no cluster to ask
            return place(pod, placement)
        if warning := idle_gpus_warning(pool, gpus):
            self.log.warning("%s", warning)
        groups = cache(self.hook.platform.observe)
        if self.checkpoint:
            check_location(self.checkpoint)
            check_outlives_pod(self.checkpoint, pod, self.base_container_name, pool, groups)
        check_claims_reach(pod, pool, self.client, groups)
        if not self._deadlines(context).is_wanted:
            check_nodes_can_come(pool, groups)
        owner, now = self._owner(context), self._clock.now()
        seconds = max(1, int((self._deadlines(context).of_pod(now) - now).total_seconds()))
        return place(
            pod,
            replace(
                placement,
                active_deadline_seconds=seconds,
                labels=owner.labels,
                annotations=owner.annotations,
                avoid=self._gpu_health.bad_hosts(),
                env=environment(checkpoint=self.checkpoint, run_id=owner.task, attempt=owner.attempt),
            ),
        )

    def _build_unplaced(self, context: Context | None, **kwargs: Any) -> V1Pod:
        # KubernetesPodOperator adds to env_vars each time that it builds a pod.
        given = copy.copy(self.env_vars)
        try:
            return super().build_pod_request_obj(context, **kwargs)
        finally:
            self.env_vars = given

    def get_or_create_pod(self, pod_request_obj: V1Pod, context: Context) -> V1Pod:
        """Return this try's pod, created now unless the try was interrupted before; all earlier pods end first.

        A refusal that may be transient is tolerated for some minutes (see `patience`): a used-up quota, say.
        """

        def once() -> V1Pod:
            with mapped("create", "pods"):
                return self._get_or_create(pod_request_obj, context)

        return call_with_retries(once, within=_CREATE_WITHIN, say=self.log.warning)

    def _get_or_create(self, pod_request_obj: V1Pod, context: Context) -> V1Pod:
        owner, namespace = self._owner(context), pod_request_obj.metadata.namespace
        newest = self._pods.newest_of_try(namespace, owner) if self.reattach_on_restart else None
        current = newest if newest is not None and attempt_of(newest) >= owner.attempt else None
        there = self._pods.of_task(namespace, owner)
        earlier = [pod for pod in there if current is None or pod.metadata.uid != current.metadata.uid]
        for pod in earlier:
            if not pod.metadata.deletion_timestamp:
                self.log.info("Deleting pod %s of an earlier try or attempt.", pod.metadata.name)
                self._pods.delete(pod)
        if current is not None:
            self.log.info("Goes on with pod %s, which this try has created before.", current.metadata.name)
            self._attempt = replace(self._attempt, number=attempt_of(current))
            self._ownership = replace(owner, attempt=self._attempt.number)
            return current
        self._pods.await_end(earlier, self._clock, self.log.info)
        # From here on on_kill has a name to delete, whether or not the answer to the create arrives.
        self.pod = pod_request_obj
        pod = self._pods.create(pod_request_obj, owner, grace_seconds=self.termination_grace_period or 30)
        self.log.info("Created pod %s/%s.", pod.metadata.namespace, pod.metadata.name)
        return pod

    def find_pod(self, namespace: str, context: Context, *, exclude_checked: bool = True) -> V1Pod | None:
        """Return this task's pod, by its name once there is one."""
        if self.pod is not None:
            meta = self.pod.metadata
            return self._pods.read(meta.name, meta.namespace, uid=meta.uid)
        return self._pods.newest_of_try(namespace, self._owner(context))

    def _owner(self, context: Context) -> Ownership:
        if self._ownership is None:
            from airflow_gpu_provider.run_identity import run_key

            owner = Ownership.of(context["ti"], run_key(context, self._rendered_pool().name, self.block_id))
            self._ownership = replace(owner, attempt=self._attempt.number)
        return self._ownership

    def _deadlines(self, context: Context) -> PodDeadlines:
        if self._pod_deadlines is None:
            self._pod_deadlines = PodDeadlines(
                api=self.client.api_client,
                clock=self._clock,
                key=self._owner(context).key,
                max_runtime=self._rendered_pool().max_runtime,
                execution_timeout=self.execution_timeout,
                started_at=context["ti"].start_date,
                at_latest=self._attempt.deadline,
            )
        return self._pod_deadlines

    # -- waiting ---------------------------------------------------------------------------------------------

    def invoke_defer_method(self, last_log_time: Any = None, context: Context | None = None) -> None:
        """Wait for the pod in the triggerer; a task that is not to defer waits in `execute_sync`."""
        assert context is not None
        if self.deferrable:
            self._defer(self._wait(context, "ended"), context)

    def _defer(self, wait: PodWait, context: Context) -> None:
        from airflow_gpu_provider.run_identity import lock_holder

        self._attempt = replace(self._attempt, deadline=self._attempt.deadline or wait.deadline)
        carried = {"attempt": self._attempt.to_record(), "setbacks": self._setbacks.to_record()}
        record = {
            "version": RECORD_VERSION,
            "pool": self._rendered_pool().serialize(),
            "wait": wait.to_record(),
            "owner": self._owner(context).writer,
            "key": asdict(self._owner(context).key),
            "holder": lock_holder(context),
            "deferred_at": time.time(),
            "pause": self._setbacks.pause,
            "delete_on_kill": self.on_kill_action == OnKillAction.DELETE_POD,
            "grace_seconds": self.termination_grace_period,
            "logs": self._task_log.to_stream(self.pod, self.client.api_client),
            "result": {"container": PodDefaults.SIDECAR_CONTAINER_NAME, "path": RESULT_FILE}
            if self.do_xcom_push
            else None,
            "extra": {**(self.trigger_kwargs or {}), **carried},
        }
        timeout = max(wait.deadline - self._now(), timedelta(0)) + _DEFER_MARGIN
        self.log.info("Waiting in the triggerer for pod %s, until %s at the latest", wait.name, wait.deadline)
        self.defer(trigger=GpuPodTrigger(record), method_name="trigger_reentry", timeout=timeout)

    def _watch_here(self, context: Context) -> Watched:
        """Wait in this process until the pod has ended, with its log."""
        watched = self._block("started", context)
        if watched.error is None or watched.container_ended:
            self._call_back("on_pod_starting", context)
        return self._block("ended", context) if watched.error is None and not watched.container_ended else watched

    def _block(self, until: Literal["started", "ended"], context: Context) -> Watched:
        wait = self._wait(context, until)
        if self._narrator is None:
            self._narrator = Narrator(self.log.info, started=wait.started)
        watch = partial(self._watch, wait, self._narrator, self._owner(context).writer)
        return self._stop.run(persistently(watch, until=wait.deadline, narrator=self._narrator))

    async def _watch(self, wait: PodWait, narrator: Narrator, owner: str) -> Watched:
        pool = self._rendered_pool()

        def open_access() -> ClusterAccess:
            access: ClusterAccess = self.hook.access
            return access

        async with connected(pool.cluster_identity, open_access) as api:
            wanted = self._task_log.to_stream(self.pod, self.client.api_client)
            logs = PodLogs(api, wait, wanted, self.log.log, tell=self._task_log.tell, alone=True)
            try:
                async with logs:
                    progress = await watch_pod(
                        pool, wait, owner=owner, narrator=narrator, open_access=open_access, on_pod=logs.follow
                    )
                    if isinstance(progress.error, PodPreempted):
                        await logs.drain(LAST_WORDS_WITHIN)
            finally:
                self._task_log.followed = logs.rest()
        return Watched.of_progress(wait, progress, self._task_log.followed)

    def _tell_timeline(self, phases: Sequence[Mapping[str, Any]], context: Context) -> None:
        if not phases:
            return
        self._phases = phases
        for phase in phases:
            self.log.info("  %s", phase_in_words(phase))
        whole = self._attempt.whole_timeline(phases) if self._attempt.number > 1 else phases
        context["ti"].xcom_push(key="timeline", value=[*map(dict, whole)])

    def _wait(self, context: Context, until: Literal["started", "ended"]) -> PodWait:
        assert self.pod is not None
        created_at = self.pod.metadata.creation_timestamp or self._clock.now()
        deadline = self._deadlines(context).of_pod(created_at)
        self._attempt = replace(self._attempt, deadline=self._attempt.deadline or deadline)
        return PodWait(
            namespace=self.pod.metadata.namespace,
            name=self.pod.metadata.name,
            uid=self.pod.metadata.uid,
            base_container=self.base_container_name,
            started=created_at,
            schedule_seconds=self.schedule_timeout_seconds,
            start_seconds=self.startup_timeout_seconds,
            deadline=deadline,
            until=until,
            is_covered=self._deadlines(context).is_covered,
        )

    def _now(self) -> datetime:
        """Return the cluster's time, or this machine's where the cluster does not answer."""
        try:
            return self._clock.now()
        except GpuError:
            return SystemClock().now()

    # -- its log ---------------------------------------------------------------------------------------------

    @cached_property
    def _task_log(self) -> TaskLog:
        return TaskLog(
            log=self.log,
            containers=self.container_logs,
            init_containers=self.init_container_logs,
            get_logs=self.get_logs,
            with_name=self.container_name_log_prefix_enabled,
            formatter=self.log_formatter,
            in_triggerer=self.deferrable,
            on_line=None if self.deferrable else self._progress,
        )

    def _progress(self, container: str, text: str, at: datetime | None) -> None:
        timestamp = pendulum.instance(at) if at else None
        for callback in self.callbacks:
            try:
                callback.progress_callback(
                    line=text,
                    client=self.client,
                    mode=ExecutionMode.SYNC,
                    container_name=container,
                    timestamp=timestamp,
                    pod=self.pod,
                )
            except Exception:
                self.log.exception("The progress_callback of %s failed", callback)

    # -- the end ---------------------------------------------------------------------------------------------

    def _collect(self, watched: Watched, context: Context) -> Any:
        """Decide how the pod ended, collect what it has left, let it go, and then return its result or raise.

        Raises:
            GpuError: How the pod ended. Or that it may still run, or could not be collected: then it is untouched.
        """
        self.pod = pod = self._pods.read(watched.name, watched.namespace, uid=watched.uid or None)
        state = self._state(pod) if pod is not None else None
        end = watched.end(state, self._now())
        if end is None:
            assert watched.error is not None
            if self._setbacks.one_more(self._now()).may_pass(watched.error):
                raise watched.error
            end = PodEnd(error=watched.error)
        error = self._explained(end.error, watched, pod)
        if pod is None or state is None:
            return self._collect_gone(error, watched, context)
        setbacks = self._setbacks.one_more(self._now())
        self._task_log.write_rest(pod, state, error, api=self.client.api_client, setbacks=setbacks)
        result, error = self._result(pod, state, error, watched)
        self._tell_timeline(watched.timeline, context)
        if end_of(state) is not None:
            self._call_back("on_pod_completion", context)
            self._call_back("on_pod_teardown", context)
        self.post_complete_action(pod=pod, remote_pod=pod, context=context, result=result)
        if error is not None:
            raise error
        return result

    def _collect_gone(self, error: GpuError | None, watched: Watched, context: Context) -> Any:
        self._tell_timeline(watched.timeline, context)
        if error is None and self.do_xcom_push and watched.result is None:
            error = unread(None, LookupError(watched.name), pod=watched.name, node_is_there=True)
        if error is not None:
            raise error
        return parsed(watched.result, pod=watched.name) if watched.result is not None else None

    def _explained(self, error: GpuError | None, watched: Watched, pod: V1Pod | None) -> GpuError | None:
        """Return how the pod ended, by what its machine, its last lines and its node tell of it, too."""
        if error is None and watched.result:
            return None  # it was written before the container ended, and its machine has answered after that
        node = (pod.spec.node_name if pod is not None else "") or ""
        error = self._machine(watched).judged(error, pod=watched.name, node=node)
        if type(error) is not PodFailed or pod is None:
            return error
        lines = last_lines(self.client, pod, error.details.get("container") or self.base_container_name)
        bad_gpu = self._gpu_health.of_node(node)
        cause = diagnosed(error, lines, pool=self._rendered_pool(), node=node, bad_gpu=bad_gpu)
        if isinstance(cause, BadGpu):
            self._gpu_health.mark(node, cause.what)
        return cause

    def _result(
        self, pod: V1Pod, state: PodState, error: GpuError | None, watched: Watched
    ) -> tuple[Any, GpuError | None]:
        """Return the pod's result, and how it ended; that of a failed pod is a bonus, of a good one it is owed."""
        if not self.do_xcom_push or isinstance(error, PodPreempted) or end_of(state) is None:
            return None, error
        try:
            if watched.result is not None:
                self._end_sidecar(pod)
                return parsed(watched.result, pod=watched.name), error
            return self._read_result(pod), error
        except GpuError as missing:
            if error is not None:
                self.log.info("The failed pod's result is left out: %s", missing.what)
                return None, error
            if isinstance(missing, PodFailed):
                return None, self._explained(missing, watched, pod)
            raise

    def _read_result(self, pod: V1Pod) -> Any:
        name = pod.metadata.name
        try:
            return self.extract_xcom(pod=pod)
        except json.JSONDecodeError as error:
            raise invalid(error.doc, error, pod=name) from None
        except Exception as error:
            # Of exec, every library below raises what it likes: the pod says what it means.
            now = self._pods.read(name, pod.metadata.namespace, uid=pod.metadata.uid)
            state = self._state(now) if now is not None else None
            is_there = is_node_there(self.client.api_client, pod.spec.node_name)
            raise unread(state, error, pod=name, node_is_there=is_there) from error

    def _end_sidecar(self, pod: V1Pod) -> None:
        """End the container that keeps the result: it ignores SIGTERM, and would keep the node for the grace period."""
        try:
            self.pod_manager.extract_xcom_kill(pod)
        except Exception as error:  # noqa: BLE001 - exec's libraries raise what they like
            self.log.warning("The XCom sidecar of pod %s runs on: %r", pod.metadata.name, error)

    def _call_back(self, name: str, context: Context) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(
                pod=self.pod, client=self.client, mode=ExecutionMode.SYNC, context=context, operator=self
            )

    def is_istio_enabled(self, pod: V1Pod) -> bool:
        """Say that sidecars may outlive the base container, whose end decides, whatever the sidecars are."""
        return True

    def cleanup(self, pod: V1Pod, remote_pod: V1Pod, xcom_result: Any = None, context: Context | None = None) -> None:
        """Release the pod as on_finish_action says; how it ended is decided before.

        Raises:
            AirflowSkipException: skip_on_exit_code says so.
        """
        if self._killed or not remote_pod:
            return
        self._is_released = True
        try:
            super().cleanup(pod=pod, remote_pod=remote_pod, xcom_result=xcom_result, context=context)
        except AirflowSkipException:
            raise
        except AirflowException as error:  # "returned a failure", mostly
            self.log.debug("KubernetesPodOperator's view: %s", error)
        finally:
            if self.on_finish_action != OnFinishAction.DELETE_POD:
                self._pods.mark_collected(remote_pod)

    def _machine(self, watched: Watched) -> PodMachine:
        return PodMachine(
            watched.machine,
            self._rendered_pool(),
            lambda: self.hook.platform,
            lambda node: machine_of(self.client.api_client, node),
        )

    def _state(self, pod: V1Pod) -> PodState:
        raw = self.client.api_client.sanitize_for_serialization(pod)
        return PodState.parse(raw, self.base_container_name)

    # -- killed ----------------------------------------------------------------------------------------------

    def on_kill(self) -> None:
        """Delete the pod; the task then ends with TaskKilled, never green (apache/airflow#73006)."""
        timed_out = isinstance(sys.exc_info()[1], AirflowTaskTimeout)
        self._killed = True
        if self.on_kill_action == OnKillAction.KEEP_POD:
            self.log.info("Pod is kept, as on_kill_action says.")
        elif self.pod is not None:
            self._pods.delete_from_signal_handler(self.pod, grace_seconds=self.termination_grace_period)
        if timed_out:
            if self._context is not None:
                self._release_unattended(self._context)
        else:
            name = self.pod.metadata.name if self.pod else "none yet"
            self._stop.ask(TaskKilled(f"Task {self.task_id} was told to stop (pod: {name}).", "Run it again."))
