"""TrainingOperator: what GpuPodOperator and GpuWorkloadOperator have in common.

It is the host of PodTry, which runs one attempt after another.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from kubernetes.client import V1Pod

from airflow_gpu_provider.errors import PoolSpecError, TaskKilled
from airflow_gpu_provider.operators.task_code import check_folder, take_code
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.switch import COLLECT_WITHIN
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.links import LINKS, KueueQueueLink
from airflow_gpu_provider.tasks.loops import check_loops, is_overtaken, iteration_of
from airflow_gpu_provider.tasks.next_try import next_try_within
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, block_of, current_pool, no_pool, seconds_of
from airflow_gpu_provider.tasks.telemetry import gauge_use, of_training, parent_variables, record_phases
from airflow_gpu_provider.tasks.xcom import push
from airflow_gpu_provider.training.code.code_files import given_code
from airflow_gpu_provider.training.life.asked import Asked, digest_of
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.pod_try import PodTry
from airflow_gpu_provider.training.life.run import AttemptRecord, OnPreemption, PodSettings, Preemptions, Run
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.place.checkpoint import check_location
from airflow_gpu_provider.training.place.pod_placement import Placement
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from airflow_gpu_provider.training.wait.gpu_use import GpuWatching
from airflow_gpu_provider.triggers.pod import RECORD_VERSION, GpuPodTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial


IDLE_GPU_WARNING = timedelta(minutes=15)

_MEASURED: Mapping[str, Callable[[BaseOperator, Any], None]] = {"timeline": record_phases, "utilization": gauge_use}
"""By XCom key: the metrics, and spans, that its value gives."""


class TrainingOperator(PoolOperator):
    """Base of the operators that run pods on a pool, and wait for them.

    Args:
        utilization: Sample GPU use with nvidia-smi in the container once a minute, with several pods in one of them at
            a time: docs/running.md. Default True.
        idle_gpu_warning: After how long to log a warning of GPUs at 0 % use, or, as in a hang, at full use with a draw
            near idle; in seconds or as a timedelta, None or 0 for never. Default 15 minutes.
        idle_gpu_timeout: After how long without computing to fail with GpuIdle, in seconds or as a timedelta; the
            task's pods are deleted. None or 0 for never. Default None.
        code: The files that its container gets, read-only, at /app, which is then its working directory and its
            PYTHONPATH unless these are set: "bundle" for all of the DAG file's bundle, or a folder relative to the DAG
            file, such as "trainer/". Not templated. Default None: the image has all. See docs/gpu-pod.md.

    Raises:
        PoolSpecError: idle_gpu_timeout without utilization, or an invalid duration.
        CodeUnusable: The code is not in the bundle, or too large.
    """

    gpu_role = "training"
    operator_extra_links = (*LINKS, KueueQueueLink())
    ui_color = "#d9f2d9"

    # Arguments of its subclasses; GpuPodOperator has some of them from KubernetesPodOperator.
    namespace: Any
    deferrable: Any
    on_finish_action: Any
    reattach_on_restart: Any
    schedule_timeout_seconds: Any
    startup_timeout_seconds: Any
    termination_grace_period: Any
    _context: Context
    _digest = ""

    def __init__(
        self,
        *,
        utilization: bool = True,
        idle_gpu_warning: float | timedelta | None = IDLE_GPU_WARNING,
        idle_gpu_timeout: float | timedelta | None = None,
        code: str | PurePath | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.code = None if code is None else given_code(code)
        self.utilization = utilization
        self.idle_gpu_warning = idle_gpu_warning
        self.idle_gpu_timeout = idle_gpu_timeout
        warn = seconds_of("idle_gpu_warning", idle_gpu_warning)
        end = seconds_of("idle_gpu_timeout", idle_gpu_timeout)
        if end is not None and not utilization:
            raise PoolSpecError("idle_gpu_timeout with utilization=False.", "Leave out one of the two.")
        self.gpu_watching = GpuWatching(warn_seconds=warn, end_seconds=end) if utilization else None

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        return super().get_serialized_fields() | {"code"}  # for the doctor

    @classmethod
    def _check_partial(cls, made: OperatorPartial, kwargs: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
        super()._check_partial(made, kwargs, default_args)
        if kwargs.get("code") is not None:
            made.kwargs["code"] = given_code(kwargs["code"])

    @property
    @abstractmethod
    def _stop_message(self) -> str:
        """What TaskKilled says about the task."""

    def _set_pool(self, gpu_pool: GpuPool | None, block_id: str | None) -> None:
        # The enclosing block's pool takes precedence over one in default_args.
        self.gpu_pool = self._by_keyword("gpu_pool", gpu_pool, None) or current_pool() or gpu_pool
        if self.gpu_pool is None:
            raise PoolSpecError(
                "No GPU pool is given.",
                "Give gpu_pool=, or put the task into a `with gpu_nodes(...)` block.",
            )
        check_loops(self.gpu_role, self.task_group, self.gpu_pool)
        of_block = block_of(self.gpu_pool) if isinstance(self.gpu_pool, GpuPool) else ""
        self.block_id = of_block if block_id is None else block_id
        self._try: PodTry | None = None
        self._handed_back: Mapping[str, Any] = {}

    def _set_preemptions(
        self,
        checkpoint: str | None,
        on_preemption: OnPreemption | None,
        max_preemptions: int,
        resume_on_exit_codes: int | Sequence[int] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.on_preemption = on_preemption
        self.max_preemptions = max_preemptions
        self.resume_on_exit_codes = resume_on_exit_codes
        if isinstance(checkpoint, str) and not is_template(checkpoint):
            check_location(checkpoint)
        self._preemptions()

    @property
    def rendered_pool(self) -> GpuPool:
        """The pool; raises PoolSpecError if what was rendered is none."""
        if not isinstance(self.gpu_pool, GpuPool):
            raise no_pool(self.gpu_pool)
        return self.gpu_pool

    # -- what its author asks for, not rendered --------------------------------------------------------------

    def resolve_template_files(self) -> None:
        """Read the files that its arguments name, and note what is asked for: the DAG file has been read by now."""
        super().resolve_template_files()
        if self.code is not None:
            check_folder(self.code, self.get_dag(), self.task_id)
        self._note_what_is_asked()

    def _note_what_is_asked(self) -> None:
        """Note what is asked for, by which a success of an earlier try is known; rendering replaces it."""
        self._digest = digest_of(self._asked())

    @abstractmethod
    def _asked(self) -> Mapping[str, object]:
        """Return image, command, arguments, environment and GPUs, wherever its author gives them."""

    # -- the run ---------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Run the training; if it is preempted and may resume, run it again."""
        current = self._try
        if current is None or not current.is_resuming:
            handed_back, self._handed_back = self._handed_back, {}
            current = self._begin(context, handed_back)
        return current.run()

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue with the trigger's event: collect log and result, and resume or raise how the attempt ended."""
        return self._begin(context, event).resume(WaitOutcome.from_record(event))

    def _resume_without_event(self, error: Exception, context: Context) -> Any:
        return self._begin(context, {}).resume_without_event(error, lambda: self._namespace_of_pods(context["ti"]))

    def _namespace_of_pods(self, ti: Any) -> str:
        pushed: str | None = ti.xcom_pull(key="pod_namespace", map_indexes=ti.map_index)
        return pushed or self.namespace or "default"

    def _resume_here(self, event: Mapping[str, Any], context: Context) -> Any:
        self._handed_back = event
        return super()._resume_here(event, context)

    def on_kill(self) -> None:
        """Delete what it runs; the task then ends with TaskKilled, never green (apache/airflow#73006).

        Airflow also calls it after a timeout, which has been handled by then.
        """
        if self._try is not None:
            if self._try.has_timed_out:
                return
            self._killed = True
            self._try.kill()
        self._stop.ask(TaskKilled(f"Task {self.task_id} {self._stop_message}", "Run it again."))

    def _begin(self, context: Context, event: Mapping[str, Any]) -> PodTry:
        """Return the try of this process, new or continued."""
        self._context = context
        if self.deferrable and is_overtaken(context):
            self.log.info("A later iteration of its loop has begun, so the task waits in its worker.")
            self.deferrable = False
        self._try = PodTry(self._run(context), self, event)
        return self._try

    def _run(self, context: Context) -> Run:
        """Return the try of this context; raises PoolSpecError if there is no pool."""
        from airflow_gpu_provider.tasks.run_identity import lock_holder

        return Run(
            log=self.log,
            pod_log=self._pod_log(),
            cluster=self._cluster(),
            stop=self._stop,
            started_at=context["ti"].start_date,
            holder=lock_holder(context),
            settings=self._settings(),
            asked=self._asked_in(context["ti"]),
            has_next_try=context["ti"].try_number <= context["ti"].max_tries,
            take_code=partial(take_code, self.code, self.get_dag()) if self.code is not None else None,
        )

    def _asked_in(self, ti: Any) -> Asked:
        has_next_try = ti.try_number <= ti.max_tries
        within = next_try_within(self, ti.try_number) if has_next_try else COLLECT_WITHIN
        return Asked.of(ti, retries=self.retries or 0, digest=self._digest, collect_within=max(within, COLLECT_WITHIN))

    @abstractmethod
    def _cluster(self) -> PoolHook:
        """Return the hook of the pool's cluster."""

    @abstractmethod
    def _pod_log(self) -> TaskLog:
        """Return the log of the try's pods."""

    @abstractmethod
    def _settings(self) -> PodSettings:
        """Return what the author of the task has chosen for its pods."""

    def _settings_with(self, placement: Placement, **own: Any) -> PodSettings:
        """Return them with the arguments that all operators have."""
        return PodSettings(
            placement=placement,
            checkpoint=self.checkpoint,
            preemptions=self._preemptions(),
            schedule_seconds=self.schedule_timeout_seconds,
            start_seconds=self.startup_timeout_seconds,
            execution_timeout=self.execution_timeout,
            grace_seconds=self.termination_grace_period,
            reattaches=self.reattach_on_restart,
            deferrable=self.deferrable,
            on_finish=self.on_finish_action,
            gpus=self.gpu_watching,
            variables=parent_variables(self._context["ti"]),
            **own,
        )

    # -- what its try calls: see Host ------------------------------------------------------------------------

    @abstractmethod
    def new_attempt(self, run: Run, owner: Callable[[], Ownership], record: AttemptRecord) -> TaskAttempt:
        """Return an attempt."""

    def ownership(self) -> Ownership:
        """Return the owner of what the try creates."""
        from airflow_gpu_provider.tasks.run_identity import run_key

        key = run_key(self._context, self.rendered_pool.name, self.block_id)
        return Ownership.of(self._context["ti"], key, iteration=iteration_of(self._context))

    def run_again(self) -> Any:
        """Run the try once more, in this worker."""
        return self.execute(self._context)

    def wait_in_triggerer(self, record: dict[str, Any], timeout: timedelta) -> NoReturn:
        """Defer with a trigger of this record."""
        trigger = GpuPodTrigger({"version": RECORD_VERSION, **record})
        self.defer(trigger=trigger, method_name="trigger_reentry", timeout=timeout)

    def push(self, key: str, value: Any) -> None:
        """Push an XCom, and measure what it has."""
        if key == "timeline" and (try_number := self._context["ti"].try_number) > 1:
            value = [{**each, "try": try_number} for each in value]  # Airflow has deleted the earlier tries' ones
        push(self._context, key, value)
        if measure := _MEASURED.get(key):
            measure(self, value)
        if key == "timeline":
            self._lineage = partial(of_training, self.rendered_pool.name, self._gpus_in_all, value)

    @property
    @abstractmethod
    def _gpus_in_all(self) -> int | None:
        """How many GPUs all of its pods have together; None if it is not known."""

    def show_pod(self, pod: V1Pod | None) -> None:
        """Take the pod as it is known now."""

    def _preemptions(self) -> Preemptions:
        return Preemptions.of(
            self.on_preemption,
            max_preemptions=self.max_preemptions,
            has_checkpoint=self.checkpoint is not None,
            exit_codes=self.resume_on_exit_codes,
            skips=getattr(self, "skip_on_exit_code", ()),
        )
