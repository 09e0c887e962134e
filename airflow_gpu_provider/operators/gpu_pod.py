"""GpuPodOperator: a KubernetesPodOperator that places itself on a GPU pool, and says why when it waits or ends.

It gives Airflow's arguments, callbacks and deferral to PodTry, which has the life of the task's pods.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.utils.pod_manager import OnFinishAction, OnKillAction
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskDeferralError, TaskDeferralTimeout
from kubernetes.client import V1Pod

from airflow_gpu_provider.errors import PoolSpecError, TaskKilled
from airflow_gpu_provider.links import NodeGroupsLink
from airflow_gpu_provider.open_blocks import block_of, current_pool
from airflow_gpu_provider.operators.gpu_use_arguments import GpuUseArguments
from airflow_gpu_provider.operators.moved_arguments import MovedArguments
from airflow_gpu_provider.operators.pod_callbacks import call_back, tell_progress
from airflow_gpu_provider.operators.several_nodes import (
    check_nodes,
    check_partial_nodes,
    check_ranks,
    ranks_of,
    seconds_of,
)
from airflow_gpu_provider.pods.attempt import PodAttempt
from airflow_gpu_provider.pods.checkpoint import check_location
from airflow_gpu_provider.pods.hook import PoolHook
from airflow_gpu_provider.pods.kueue import check_queue_name, queue_of
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.pods.placement import Placement, check_gpus, check_resources, place, resources_of
from airflow_gpu_provider.pods.pod_try import PodTry
from airflow_gpu_provider.pods.preemptions import MAX_PREEMPTIONS, OnPreemption, Preemptions
from airflow_gpu_provider.pods.store import CarefulPodManager
from airflow_gpu_provider.pods.task import PodTask
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.pods.task_log import TaskLog
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.pods.wait import PodWait
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.triggers.gang import GpuGangTrigger
from airflow_gpu_provider.triggers.pod import RECORD_VERSION, GpuPodTrigger
from airflow_gpu_provider.workloads.gang_attempt import GangAttempt
from airflow_gpu_provider.workloads.gang_wait import GangWait

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

SCHEDULE_TIMEOUT = timedelta(minutes=30)
STARTUP_TIMEOUT = timedelta(minutes=20)
_TEMPLATED = ("gpu_pool", "block_id", "queue_name", "checkpoint")


class GpuPodOperator(GpuUseArguments, MovedArguments, KubernetesPodOperator):
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
        nodes: On how many nodes it runs, with one such pod on each, all in one zone: see docs/multi-node.md. Default 1.
        log_ranks: With nodes=: whose lines are written into the task's log, a rank or a list of them. Default: all.
        hang_timeout: With nodes=: after how long without a line from any rank the task fails with GangHung, in seconds
            or as a timedelta; None or 0 for never. Default None.
        queue_name: The LocalQueue of Kueue that admits it: docs/workloads.md. Templated. Default None.
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
        utilization, idle_gpu_warning, idle_gpu_timeout: See gpu_use_arguments.
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
            the pod ended, or with nodes= the rank that failed first.
        GangHung, GpuIdle: No rank has printed anything for hang_timeout; no GPU computed for idle_gpu_timeout.
        TaskKilled: The task was told to stop; the pod is deleted.
    """

    template_fields: Sequence[str] = (*KubernetesPodOperator.template_fields, *_TEMPLATED)
    operator_extra_links = (NodeGroupsLink(),)
    ui_color = "#d9f2d9"

    def __init__(
        self,
        *,
        gpu_pool: GpuPool | None = None,
        block_id: str | None = None,
        gpus: int = 1,
        nodes: int = 1,
        log_ranks: int | Sequence[int] | None = None,
        hang_timeout: float | timedelta | None = None,
        queue_name: str | None = None,
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
        of_block = block_of(self.gpu_pool) if isinstance(self.gpu_pool, GpuPool) else ""
        self.block_id = of_block if block_id is None else block_id
        self.gpus = gpus
        self.nodes = self._by_keyword("nodes", nodes, 1)  # in default_args it is EnsureGpuPoolOperator's
        # There they are for the gangs among a DAG's tasks.
        self.log_ranks = log_ranks if self.nodes != 1 else self._by_keyword("log_ranks", log_ranks, None)
        self.hang_timeout = hang_timeout if self.nodes != 1 else self._by_keyword("hang_timeout", hang_timeout, None)
        check_nodes(self.task_id, self.nodes, self.gpu_pool, kwargs)
        check_ranks(self.task_id, self.nodes, vars(self))
        check_queue_name(queue_name, self.labels)
        self.queue_name = queue_name
        self.shm_size = shm_size
        self.checkpoint = checkpoint
        self.on_preemption = on_preemption
        self.max_preemptions = max_preemptions
        self._try: PodTry | None = None
        self._handed_back: Mapping[str, Any] = {}
        if isinstance(self.gpu_pool, GpuPool):
            self._check_moved(self.gpu_pool)
            if self.gpu_pool.is_rendered:
                check_gpus(self.gpu_pool, int(gpus))
                if (resources := resources_of(self.container_resources)) is not None:
                    check_resources(resources, self.gpu_pool)
        if isinstance(checkpoint, str) and not is_template(checkpoint):
            check_location(checkpoint)
        self._preemptions()

    @classmethod
    def _check_partial(cls, made: OperatorPartial, kwargs: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
        super()._check_partial(made, kwargs, default_args)
        check_partial_nodes(made.kwargs["task_id"], kwargs, default_args)
        check_queue_name(kwargs.get("queue_name"), kwargs.get("labels"))

    # -- the run ---------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Run the pod; where it is taken away and may resume, run the next one."""
        self._check_moved(self._rendered_pool())
        self.name = self._set_name(self.name)
        current = self._try
        if current is None or not current.is_resuming:
            handed_back, self._handed_back = self._handed_back, {}
            current = self._begin(context, handed_back)
        return current.run()

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on when the trigger has an event: collect log and result, and resume or raise what the pod ended with."""
        watched = Watched.of_event(event, GangWait if self.nodes > 1 else PodWait)
        return self._begin(context, event).go_on(watched)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on also where the trigger itself died, or Airflow's own deferral timeout came first."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralTimeout, TaskDeferralError) as error:
            return self._begin(context, {}).go_on_without_event(error, lambda: self._namespace_of_pod(context["ti"]))

    def _namespace_of_pod(self, ti: Any) -> str:
        told: str | None = ti.xcom_pull(key="pod_namespace", map_indexes=ti.map_index)
        return told or self.namespace or "default"

    def _go_on_here(self, event: Mapping[str, Any], context: Context) -> Any:
        self._handed_back = event
        return super()._go_on_here(event, context)

    def on_kill(self) -> None:
        """Delete the pod; the task then ends with TaskKilled, never green (apache/airflow#73006).

        Airflow calls it after a timeout too, when that has been dealt with.
        """
        if self._try is not None:
            if self._try.has_timed_out:
                return
            self._killed = True
            self._try.kill()
        name = self.pod.metadata.name if self.pod else "none yet"
        self._stop.ask(TaskKilled(f"Task {self.task_id} was told to stop (pod: {name}).", "Run it again."))

    def _begin(self, context: Context, event: Mapping[str, Any]) -> PodTry:
        """Return the try of this run of the process, begun anew or gone on with."""
        self._try = PodTry(self._task(context), event)
        return self._try

    # -- what it gives to the life of its pods ---------------------------------------------------------------

    def _task(self, context: Context) -> PodTask:
        from airflow_gpu_provider.run_identity import lock_holder, run_key

        ti, pool = context["ti"], self._rendered_pool()
        cluster = TaskCluster(
            pool=pool,
            hook=self.hook,
            base_container=self.base_container_name,
            make_manager=lambda: self.pod_manager,
        )
        return PodTask(
            log=self.log,
            pod_log=_pod_log(self),
            cluster=cluster,
            stop=self._stop,
            placement=self._placement(),
            checkpoint=self.checkpoint,
            preemptions=self._preemptions(),
            schedule_seconds=self.schedule_timeout_seconds,
            start_seconds=self.startup_timeout_seconds,
            execution_timeout=self.execution_timeout,
            started_at=ti.start_date,
            grace_seconds=self.termination_grace_period,
            reattaches=self.reattach_on_restart,
            has_result=self.do_xcom_push,
            deferrable=self.deferrable,
            is_kept_when_killed=self.on_kill_action == OnKillAction.KEEP_POD,
            holder=lock_holder(context),
            owner=lambda: Ownership.of(ti, run_key(context, pool.name, self.block_id)),
            execute=lambda: self.execute(context),
            build=lambda: self._build(context),
            create=lambda request: self.get_or_create_pod(request, context),
            defer=self._defer,
            extract_result=lambda pod: self.extract_xcom(pod=pod),
            release=lambda pod, result: self.post_complete_action(
                pod=pod, remote_pod=pod, context=context, result=result
            ),
            call_back=lambda name, **what: call_back(self, name, context=context, **what),
            push=lambda key, value: ti.xcom_push(key=key, value=value),
            on_pod=self._show,
            trigger_kwargs=self.trigger_kwargs or {},
            nodes=self.nodes,
            gpus=self.gpu_watching,
            log_ranks=ranks_of(self.log_ranks),
            hang_seconds=seconds_of(self.hang_timeout),
            new_attempt=GangAttempt if self.nodes > 1 else PodAttempt,
            keeps=partial(_keeps, self.on_finish_action),
            skips=self.skip_on_exit_code,
        )

    def _placement(self) -> Placement:
        pool, queue = self._rendered_pool(), queue_of(self.queue_name, self.labels)
        container = self.base_container_name
        return Placement(pool=pool, gpus=int(self.gpus), base_container=container, shm_size=self.shm_size, queue=queue)

    def _preemptions(self) -> Preemptions:
        return Preemptions.of(
            self.on_preemption, max_preemptions=self.max_preemptions, has_checkpoint=self.checkpoint is not None
        )

    def _rendered_pool(self) -> GpuPool:
        if not isinstance(self.gpu_pool, GpuPool):
            raise PoolSpecError(
                f"Task {self.task_id}: no GPU pool is given.",
                "Give gpu_pool=, or put the task into a `with gpu_nodes(...)` block.",
            )
        return self.gpu_pool

    def _show(self, pod: V1Pod | None) -> None:
        self.pod = self.remote_pod = pod

    def _build(self, context: Context) -> V1Pod:
        self.pod_request_obj = self.build_pod_request_obj(context)
        return self.pod_request_obj

    def _defer(self, record: dict[str, Any], timeout: timedelta) -> None:
        waits = GpuGangTrigger if self.nodes > 1 else GpuPodTrigger
        trigger = waits({"version": RECORD_VERSION, **record})
        self.defer(trigger=trigger, method_name="trigger_reentry", timeout=timeout)

    # -- KubernetesPodOperator's own steps -------------------------------------------------------------------

    @cached_property
    def hook(self) -> Any:
        return PoolHook(self._rendered_pool())

    @cached_property
    def pod_manager(self) -> CarefulPodManager:
        return CarefulPodManager(kube_client=self.client, callbacks=self.callbacks)

    def build_pod_request_obj(self, context: Context | None = None, **kwargs: Any) -> V1Pod:
        """Return the pod to create: KubernetesPodOperator's, placed on the pool."""
        if context is not None:
            current = self._try or self._begin(context, {})
            return current.attempt.request(lambda: self._build_unplaced(context, **kwargs))
        placement = self._placement()  # a dry run: no task instance, and no cluster to ask
        check_gpus(placement.pool, placement.gpus)
        return place(self._build_unplaced(None, **kwargs), placement)

    def _build_unplaced(self, context: Context | None, **kwargs: Any) -> V1Pod:
        # KubernetesPodOperator adds to env_vars each time that it builds a pod.
        given = copy.copy(self.env_vars)
        try:
            return super().build_pod_request_obj(context, **kwargs)
        finally:
            self.env_vars = given

    def get_or_create_pod(self, pod_request_obj: V1Pod, context: Context) -> V1Pod:
        """Return this try's pod, created now unless the try was interrupted before; all earlier pods end first."""
        current = self._try or self._begin(context, {})
        return current.attempt.create(pod_request_obj)

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
        try:
            super().cleanup(pod=pod, remote_pod=remote_pod, xcom_result=xcom_result, context=context)
        except AirflowSkipException:
            raise
        except AirflowException as error:  # "returned a failure", mostly
            self.log.debug("KubernetesPodOperator's view: %s", error)
        finally:
            if self.on_finish_action != OnFinishAction.DELETE_POD:
                self.pod_manager.mark_collected(remote_pod)


def _pod_log(operator: GpuPodOperator) -> TaskLog:
    return TaskLog(
        log=operator.log,
        containers=operator.container_logs,
        init_containers=operator.init_container_logs,
        get_logs=operator.get_logs,
        with_name=operator.container_name_log_prefix_enabled,
        formatter=operator.log_formatter,
        in_triggerer=operator.deferrable,
        on_line=None if operator.deferrable else partial(tell_progress, operator),
    )


def _keeps(action: OnFinishAction, succeeded: bool) -> bool:
    return action != OnFinishAction.DELETE_POD and not (succeeded and action == OnFinishAction.DELETE_SUCCEEDED_POD)
