"""GpuPodOperator: a KubernetesPodOperator that places itself on a GPU pool, and says why when it waits or ends.

It is the host of PodTry, which manages the life of the task's pods.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pendulum
from airflow.providers.cncf.kubernetes.callbacks import ExecutionMode
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.utils.pod_manager import OnFinishAction
from airflow.sdk.exceptions import AirflowException, AirflowSkipException
from kubernetes.client import V1Pod

from airflow_gpu_provider.operators.pod_arguments import (
    KEEP_POD,
    LaterArguments,
    MovedArguments,
    check_checkpoint_is_mounted,
    check_image,
    check_nodes,
    check_partial_nodes,
    check_pod_arguments,
    check_ranks,
    ranks_of,
)
from airflow_gpu_provider.operators.training import TrainingOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.tasks.pool_operator import current_pool, seconds_of
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.object_attempt import GangAttempt
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from airflow_gpu_provider.training.life.run import MAX_PREEMPTIONS, AttemptRecord, OnPreemption, PodSettings, Run
from airflow_gpu_provider.training.life.store import CarefulPodManager
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.place.pod_placement import (
    Placement,
    check_gpus,
    check_mounts_beside_code,
    check_queue_name,
    check_resources,
    place,
    queue_of,
)

if TYPE_CHECKING:
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial


SCHEDULE_TIMEOUT = timedelta(minutes=30)
STARTUP_TIMEOUT = timedelta(minutes=20)
_TEMPLATED = ("gpu_pool", "block_id", "queue_name", "checkpoint")
_ASKED = (
    *("image", "cmds", "arguments", "env_vars", "env_from", "secrets", "gpus", "nodes", "code"),
    *("pod_template_dict", "full_pod_spec"),
)
"""The arguments that say what is trained, and on what."""


class GpuPodOperator(TrainingOperator, MovedArguments, LaterArguments, KubernetesPodOperator):
    """Run a pod on a GPU pool.

    Every argument of KubernetesPodOperator works. The pod selects the pool's nodes, tolerates their taints, gets its
    GPUs and an in-memory /dev/shm; while it waits, the task's log says for what; if it fails, the error's type says
    why: PodOutOfMemory, GpuOutOfMemory, DriverMissing, BadGpu, PodImageError, PodPreempted, PodDeadline or PodFailed,
    which a `retry_policy` can distinguish.

    Args:
        gpu_pool: The pool. Default: the pool of the enclosing `gpu_nodes` block. (Airflow's own `pool` is a slot pool.)
        block_id: The demand that covers the pod: EnsureGpuPoolOperator's block_id. Default: that of the enclosing
            `gpu_nodes` block of this pool, otherwise empty. A pod that no demand covers is its own demand.
        gpus: GPUs for the base container. Default 1.
        nodes: The number of nodes it runs on, with one such pod on each, all in one zone: see docs/multi-node.md.
            Default 1.
        log_ranks: With nodes=: the ranks whose lines are written to the task's log, a rank or a list of ranks. Default:
            all.
        hang_timeout: After how long without a line from any pod, or with all their GPUs busy at a draw near idle, the
            task fails with GpuHung (with nodes=: GangHung), in seconds or as a timedelta; None or 0 for never. Default
            None: of such GPUs a warning, as idle_gpu_warning says.
        queue_name: The Kueue LocalQueue that admits it: docs/running.md. Templated. Default None.
        shm_size: Size of /dev/shm, like "8Gi". Default: up to the container's memory limit, otherwise the node's
            memory; its contents count as the container's memory. "0" keeps the container runtime's 64 MiB.
        schedule_timeout_seconds: How long the pod may wait for a node, node boot included. Time during which the pool
            has all the nodes that it may have does not count: the pod is then queued. Default 30 minutes.
        startup_timeout_seconds: How long it may take from getting a node to the running container: image, volumes, init
            containers. Default 20 minutes.
        deferrable: Wait in the triggerer. Default True.
        checkpoint: Where the training keeps its checkpoint: a URL like "s3://bucket/folder", or a path at which a
            volume of the pod is mounted. The container finds it, with a folder for this run of this task, in
            AIRFLOW_GPU_CHECKPOINT. Templated. Default None.
        on_preemption: What to do when the pod is preempted (spot reclaim, eviction, lost node): "resume" starts it
            again, without using one of Airflow's retries; "fail" raises PodPreempted. Default: "resume"
            with a checkpoint, else "fail". All pods of a try end with their run's demand.
        max_preemptions: How often one try may resume. Default 3.
        resume_on_exit_codes: Exit codes by which the program, having saved its checkpoint, asks for another node, such
            as [75]: it is resumed as after a preemption, and its DAG's pods avoid that node while the pool may have
            another; any rank's counts. Needs `checkpoint`. In default_args it is for the tasks with one. Default None.
        on_gpu_out_of_memory: What to do when it runs out of GPU memory: "larger" has the next try ask for the pool's
            next machine type with more memory per GPU, at most twice, and needs `retries` and a `gpu_nodes` block;
            "fail" fails at once. See docs/running.md. Default "fail".
        utilization, idle_gpu_warning, idle_gpu_timeout, code: See TrainingOperator.
        **kwargs: KubernetesPodOperator's, and those that EksPodOperator and GKEStartPodOperator add to them (see
            pod_arguments). `log_pod_spec_on_failure` is False by default. The connection is the pool's own;
            in_cluster and config_file are not used, and of kubernetes_conn_id on a cloud's pool only the XCom
            sidecar's settings.

    Raises:
        PoolSpecError: No pool is given, or the pod's own spec contradicts it.
        PoolNotEnsured: No run wants nodes of the pool, and it has no node group; no pod is created.
        PoolDrift: Without a block: another DAG wants nodes by another spec of this pool; no pod is created.
        PodUnschedulable: No machine of the pool is large enough, or a volume is in another zone, or the scheduler
            excludes the pool's free nodes for another reason.
        CheckpointUnusable: The checkpoint would be lost with the pod or its node.
        CodeUnusable: See TrainingOperator.
        PodOutOfMemory, GpuOutOfMemory, DriverMissing, BadGpu, PodImageError, PodPreempted, PodDeadline, PodFailed: How
            the pod ended, or with nodes= the rank that failed first.
        GpuHung, GangHung: It has printed nothing for hang_timeout, or its GPUs were busy at a draw near idle.
        GpuIdle: No GPU computed for idle_gpu_timeout.
        GpuTooSmall: It ran out of GPU memory, and the next try asks for a larger one.
        TaskKilled: The task was killed; the pod is deleted.
    """

    template_fields: Sequence[str] = (*KubernetesPodOperator.template_fields, *_TEMPLATED)

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
        resume_on_exit_codes: int | Sequence[int] | None = None,
        on_gpu_out_of_memory: Literal["fail", "larger"] = "fail",
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
        self._set_pool(gpu_pool, block_id)
        self.gpus = gpus
        self.nodes = self._by_keyword("nodes", nodes, 1)  # in default_args it is EnsureGpuPoolOperator's
        # There they are meant for the gangs among a DAG's tasks.
        self.log_ranks = log_ranks if self.nodes != 1 else self._by_keyword("log_ranks", log_ranks, None)
        self.hang_timeout = hang_timeout if self.nodes != 1 else self._by_keyword("hang_timeout", hang_timeout, None)
        self.queue_name, self.shm_size = queue_name, shm_size
        self.on_gpu_out_of_memory = on_gpu_out_of_memory
        # KubernetesPodOperator takes its startup timeout in place of None, and of 0.
        check_pod_arguments(
            vars(self)
            if schedule_timeout_seconds is None
            else {**vars(self), "schedule_timeout_seconds": schedule_timeout_seconds}
        )
        check_image(self._by_keyword("image", self.image, "a subclass's"), vars(self))
        check_nodes(self.nodes, self.gpu_pool, kwargs)
        check_ranks(self.nodes, vars(self))
        check_queue_name(queue_name, self.labels)
        if isinstance(self.gpu_pool, GpuPool):
            self._check_moved(self.gpu_pool)
            queue = queue_of(queue_name, self.labels if isinstance(self.labels, Mapping) else None)
            annotations = self.annotations if isinstance(self.annotations, Mapping) else ()
            self.gpu_pool.check_nodes_come(nodes=self.nodes, gpus=gpus, queue=queue, annotations=[*annotations])
            if self.gpu_pool.is_rendered:
                check_resources(vars(self), self.gpu_pool)
        if checkpoint is None:
            resume_on_exit_codes = self._by_keyword("resume_on_exit_codes", resume_on_exit_codes, None)
        self._set_preemptions(checkpoint, on_preemption, max_preemptions, resume_on_exit_codes)
        check_checkpoint_is_mounted(checkpoint, vars(self), self.gpu_pool)
        if self.code is not None:
            check_mounts_beside_code(vars(self))
        self._note_what_is_asked()

    def _asked(self) -> Mapping[str, object]:
        file = self.pod_template_file
        template = Path(file).read_text() if isinstance(file, str) and Path(file).is_file() else file
        return {"pod_template_file": template, **{name: getattr(self, name) for name in _ASKED}}

    @classmethod
    def _check_partial(cls, made: OperatorPartial, kwargs: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
        super()._check_partial(made, kwargs, default_args)
        given = {"gpu_pool": current_pool(), **default_args, **kwargs}
        given["retries"] = made.kwargs.get("retries")
        check_pod_arguments({name: value for name, value in given.items() if value is not None})
        check_partial_nodes(kwargs, default_args)
        check_queue_name(kwargs.get("queue_name"), kwargs.get("labels"))
        if isinstance(given["gpu_pool"], GpuPool) and given["gpu_pool"].is_rendered:
            check_resources(given, given["gpu_pool"])
        check_checkpoint_is_mounted(given.get("checkpoint"), given, given["gpu_pool"], is_partial=True)
        if given.get("code") is not None:
            check_mounts_beside_code(given)

    # -- the run ---------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Run the pod; if it is preempted and may resume, run the next one."""
        self._check_moved(self.rendered_pool)
        self.name = self._set_name(self.name)
        return super().execute(context)

    @property
    def _stop_message(self) -> str:
        return f"received SIGTERM (pod: {self.pod.metadata.name if self.pod else 'none yet'})."

    # -- what it gives to its try ----------------------------------------------------------------------------

    def _cluster(self) -> PoolHook:
        hook: PoolHook = self.hook
        return hook

    def _pod_log(self) -> TaskLog:
        return TaskLog(
            log=self.log,
            containers=self.container_logs,
            init_containers=self.init_container_logs,
            get_logs=self.get_logs,
            with_name=self.container_name_log_prefix_enabled,
            formatter=self.log_formatter,
            in_triggerer=self.deferrable,
            on_line=None if self.deferrable else partial(_tell_progress, self),
        )

    def _settings(self) -> PodSettings:
        return self._settings_with(
            self._placement(),
            has_result=self.do_xcom_push,
            multiple_outputs=bool(self.multiple_outputs),
            is_kept_when_killed=self.on_kill_action == KEEP_POD,
            trigger_kwargs=self.trigger_kwargs,
            nodes=self.nodes,
            log_ranks=ranks_of(self.log_ranks),
            hang_seconds=seconds_of("hang_timeout", self.hang_timeout),
            gets_larger_gpu=self.on_gpu_out_of_memory == "larger",
            skips=self.skip_on_exit_code,
        )

    @property
    def _gpus_in_all(self) -> int:
        return int(self.gpus) * int(self.nodes)

    def _placement(self) -> Placement:
        pool, queue = self.rendered_pool, queue_of(self.queue_name, self.labels)
        gpus, container = int(self.gpus), self.base_container_name
        fabric = pool.fabric_of(gpus) if self.nodes > 1 else None
        shm = self.shm_size
        return Placement(pool=pool, gpus=gpus, base_container=container, shm_size=shm, queue=queue, fabric=fabric)

    # -- what its try calls: see PodHost ---------------------------------------------------------------------

    def new_attempt(self, run: Run, owner: Callable[[], Ownership], record: AttemptRecord) -> TaskAttempt:
        """Return an attempt: a pod, or a gang."""
        return (GangAttempt if self.nodes > 1 else PodAttempt)(run, self, owner, record)

    def unplaced_pod(self) -> V1Pod:
        """Return the pod to create, as its author wants it: the attempt places it."""
        self.pod_request_obj = self.build_pod_request_obj(self._context)
        return self.pod_request_obj

    def show_pod(self, pod: V1Pod | None) -> None:
        """Take the pod as it is known now."""
        self.pod = self.remote_pod = pod

    def call_back(self, name: str, **what: V1Pod) -> None:
        """Call this method of each of KubernetesPodOperator's callbacks, in this worker."""
        more = {"client": self.client, "mode": ExecutionMode.SYNC, "operator": self, "context": self._context}
        for callback in self.callbacks:
            getattr(callback, name)(**more, **what)

    def release_pod(self, pod: V1Pod, result: object) -> None:
        """Delete or keep a pod as on_finish_action says."""
        self.post_complete_action(pod=pod, remote_pod=pod, context=self._context, result=cast("Any", result))

    # -- KubernetesPodOperator's own steps -------------------------------------------------------------------

    @cached_property
    def hook(self) -> Any:
        return PoolHook(self.rendered_pool, settings_conn_id=self.kubernetes_conn_id, callbacks=self.callbacks)

    @cached_property
    def pod_manager(self) -> CarefulPodManager:
        return self._cluster().manager

    def build_pod_request_obj(self, context: Context | None = None, **kwargs: Any) -> V1Pod:
        """Return KubernetesPodOperator's pod; without a context (a dry run) placed on the pool, as far as known."""
        given = copy.copy(self.env_vars)  # KubernetesPodOperator adds to them each time that it builds a pod
        try:
            pod = self._complete(super().build_pod_request_obj(context, **kwargs))
        finally:
            self.env_vars = given
        if context is not None:
            return pod
        placement = self._placement()
        check_gpus(placement.pool, placement.gpus)
        return place(pod, placement)

    def is_istio_enabled(self, pod: V1Pod) -> bool:
        """Return that sidecars may outlive the base container, whose end decides in any case."""
        return True

    def cleanup(self, pod: V1Pod, remote_pod: V1Pod, xcom_result: Any = None, context: Context | None = None) -> None:
        """Release the pod as on_finish_action says; its outcome has already been decided.

        A failed pod's result has been pushed: KubernetesPodOperator would do so before it deletes the pod, and keep the
        pod if that fails.

        Raises:
            AirflowSkipException: skip_on_exit_code says so.
        """
        if self._killed or not remote_pod:
            return
        try:
            super().cleanup(pod=pod, remote_pod=remote_pod, xcom_result=None, context=context)
        except AirflowSkipException:
            raise
        except AirflowException as error:  # "returned a failure", mostly
            self.log.debug("KubernetesPodOperator's view: %s", error)
        finally:
            if self.on_finish_action != OnFinishAction.DELETE_POD:
                self.pod_manager.mark_collected(remote_pod)


def _tell_progress(operator: KubernetesPodOperator, container: str, text: str, at: datetime | None) -> None:
    """Pass a line of a container's log to each callback; a failing callback is logged."""
    timestamp = pendulum.instance(at) if at else None
    for callback in operator.callbacks:
        try:
            callback.progress_callback(
                line=text,
                client=operator.client,
                mode=ExecutionMode.SYNC,
                container_name=container,
                timestamp=timestamp,
                pod=operator.pod,
            )
        except Exception:
            operator.log.exception("The progress_callback of %s failed", callback)
