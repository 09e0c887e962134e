"""TrainingOperator: what GpuPodOperator and GpuWorkloadOperator have in common.

It passes Airflow's arguments and deferral to PodTry, which runs one attempt after another.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_gpu_provider.errors import PoolSpecError, TaskKilled
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.links import NodeGroupsLink
from airflow_gpu_provider.tasks.open_blocks import block_of, current_pool
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, seconds_of
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.pod_try import PodTry
from airflow_gpu_provider.training.life.preemptions import OnPreemption, Preemptions
from airflow_gpu_provider.training.life.store import CarefulPodManager
from airflow_gpu_provider.training.life.task import PodTask
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt
from airflow_gpu_provider.training.life.task_cluster import TaskCluster
from airflow_gpu_provider.training.place.checkpoint import check_location
from airflow_gpu_provider.training.place.pod_placement import Placement
from airflow_gpu_provider.training.wait.gpu_use import GpuWatching
from airflow_gpu_provider.training.wait.wait_outcome import AttemptWait, WaitOutcome
from airflow_gpu_provider.triggers.pod import RECORD_VERSION, GpuPodTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


IDLE_GPU_WARNING = timedelta(minutes=15)


class RunKind(NamedTuple):
    """How a training's pods are started, waited for, and waited for in a triggerer."""

    attempt: type[TaskAttempt]
    read_wait: Callable[[Mapping[str, Any]], AttemptWait]
    trigger: type[GpuPodTrigger]


class TrainingOperator(PoolOperator):
    """Base of the operators that run pods on a pool, and wait for them.

    Args:
        utilization: Sample GPU use with nvidia-smi in the container once a minute, with several pods in one of them at
            a time: docs/running.md. Default True.
        idle_gpu_warning: After how long without computing to log a warning, in seconds or as a timedelta; None or 0 for
            never. Default 15 minutes.
        idle_gpu_timeout: After how long without computing to fail with GpuIdle, in seconds or as a timedelta; the
            task's pods are deleted. None or 0 for never. Default None.

    Raises:
        PoolSpecError: idle_gpu_timeout without utilization, or an invalid duration.
    """

    operator_extra_links = (NodeGroupsLink(),)
    ui_color = "#d9f2d9"

    # Arguments of its subclasses; GpuPodOperator has some of them from KubernetesPodOperator.
    namespace: Any
    deferrable: Any
    on_finish_action: Any
    reattach_on_restart: Any
    schedule_timeout_seconds: Any
    startup_timeout_seconds: Any
    termination_grace_period: Any

    def __init__(
        self,
        *,
        utilization: bool = True,
        idle_gpu_warning: float | timedelta | None = IDLE_GPU_WARNING,
        idle_gpu_timeout: float | timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.utilization = utilization
        self.idle_gpu_warning = idle_gpu_warning
        self.idle_gpu_timeout = idle_gpu_timeout
        warn = seconds_of("idle_gpu_warning", idle_gpu_warning)
        end = seconds_of("idle_gpu_timeout", idle_gpu_timeout)
        if end is not None and not utilization:
            raise PoolSpecError(
                f"Task {self.task_id}: idle_gpu_timeout with utilization=False.", "Leave out one of the two."
            )
        self.gpu_watching = GpuWatching(warn_seconds=warn, end_seconds=end) if utilization else None

    @property
    @abstractmethod
    def _run_kind(self) -> RunKind:
        """How its attempts run."""

    @property
    @abstractmethod
    def _told_to_stop(self) -> str:
        """What TaskKilled says about the task."""

    def _set_pool(self, gpu_pool: GpuPool | None, block_id: str | None) -> None:
        # The enclosing block's pool takes precedence over one in default_args.
        self.gpu_pool = self._by_keyword("gpu_pool", gpu_pool, None) or current_pool() or gpu_pool
        of_block = block_of(self.gpu_pool) if isinstance(self.gpu_pool, GpuPool) else ""
        self.block_id = of_block if block_id is None else block_id
        self._try: PodTry | None = None
        self._handed_back: Mapping[str, Any] = {}

    def _set_preemptions(
        self, checkpoint: str | None, on_preemption: OnPreemption | None, max_preemptions: int
    ) -> None:
        self.checkpoint = checkpoint
        self.on_preemption = on_preemption
        self.max_preemptions = max_preemptions
        if isinstance(checkpoint, str) and not is_template(checkpoint):
            check_location(checkpoint)
        self._preemptions()

    @property
    def rendered_pool(self) -> GpuPool:
        """The pool; raises PoolSpecError if there is none."""
        if not isinstance(self.gpu_pool, GpuPool):
            raise PoolSpecError(
                f"Task {self.task_id}: no GPU pool is given.",
                "Give gpu_pool=, or put the task into a `with gpu_nodes(...)` block.",
            )
        return self.gpu_pool

    # -- the run ---------------------------------------------------------------------------------------------

    def _run_attempts(self, context: Context) -> Any:
        """Run an attempt; if it is preempted and may resume, run the next one."""
        current = self._try
        if current is None or not current.is_resuming:
            handed_back, self._handed_back = self._handed_back, {}
            current = self._begin(context, handed_back)
        return current.run()

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue with the trigger's event: collect log and result, and resume or raise how the attempt ended."""
        return self._begin(context, event).resume(WaitOutcome.of_event(event, self._run_kind.read_wait))

    def _go_on_without_event(self, error: Exception, context: Context) -> Any:
        return self._begin(context, {}).resume_without_event(error, lambda: self._namespace_of_pods(context["ti"]))

    def _namespace_of_pods(self, ti: Any) -> str:
        pushed: str | None = ti.xcom_pull(key="pod_namespace", map_indexes=ti.map_index)
        return pushed or self.namespace or "default"

    def _go_on_here(self, event: Mapping[str, Any], context: Context) -> Any:
        self._handed_back = event
        return super()._go_on_here(event, context)

    def on_kill(self) -> None:
        """Delete what it runs; the task then ends with TaskKilled, never green (apache/airflow#73006).

        Airflow also calls it after a timeout, which has been handled by then.
        """
        if self._try is not None:
            if self._try.has_timed_out:
                return
            self._killed = True
            self._try.kill()
        self._stop.ask(TaskKilled(f"Task {self.task_id} {self._told_to_stop}", "Run it again."))

    def _begin(self, context: Context, event: Mapping[str, Any]) -> PodTry:
        """Return the try of this process, new or continued."""
        self._try = PodTry(self._task(context), event)
        return self._try

    def _defer(self, record: dict[str, Any], timeout: timedelta) -> None:
        trigger = self._run_kind.trigger({"version": RECORD_VERSION, **record})
        self.defer(trigger=trigger, method_name="trigger_reentry", timeout=timeout)

    # -- what it gives to the life of its pods ---------------------------------------------------------------

    @abstractmethod
    def _task(self, context: Context) -> PodTask:
        """Return the try of this context; raises PoolSpecError if there is no pool."""

    def _task_of(
        self,
        context: Context,
        hook: PoolHook,
        make_manager: Callable[[], CarefulPodManager],
        placement: Placement,
        **own: Any,
    ) -> PodTask:
        """Return the try of this context, with more of PodTask's arguments."""
        from airflow_gpu_provider.tasks.run_identity import lock_holder, run_key

        ti, pool = context["ti"], self.rendered_pool
        return PodTask(
            log=self.log,
            cluster=TaskCluster(
                pool=pool, hook=hook, base_container=placement.base_container, make_manager=make_manager
            ),
            placement=placement,
            stop=self._stop,
            checkpoint=self.checkpoint,
            preemptions=self._preemptions(),
            schedule_seconds=self.schedule_timeout_seconds,
            start_seconds=self.startup_timeout_seconds,
            execution_timeout=self.execution_timeout,
            started_at=ti.start_date,
            grace_seconds=self.termination_grace_period,
            reattaches=self.reattach_on_restart,
            deferrable=self.deferrable,
            holder=lock_holder(context),
            owner=lambda: Ownership.of(ti, run_key(context, pool.name, self.block_id)),
            execute=lambda: self.execute(context),
            defer=self._defer,
            push=lambda key, value: ti.xcom_push(key=key, value=value),
            gpus=self.gpu_watching,
            new_attempt=self._run_kind.attempt,
            keeps=self._keeps,
            **own,
        )

    def _keeps(self, succeeded: bool) -> bool:
        action = self.on_finish_action
        return action != "delete_pod" and not (succeeded and action == "delete_succeeded_pod")

    def _preemptions(self) -> Preemptions:
        return Preemptions.of(
            self.on_preemption, max_preemptions=self.max_preemptions, has_checkpoint=self.checkpoint is not None
        )
