"""GpuWorkloadOperator: a Job, JobSet, TrainJob, RayJob or PyTorchJob that is placed on a GPU pool, and waited for.

It gives Airflow's arguments and deferral to PodTry, which runs one WorkloadAttempt after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout

from airflow_gpu_provider.errors import PoolSpecError, TaskKilled
from airflow_gpu_provider.links import NodeGroupsLink
from airflow_gpu_provider.open_blocks import block_of, current_pool
from airflow_gpu_provider.operators.gpu_use_arguments import GpuUseArguments
from airflow_gpu_provider.operators.workload_task import preemptions_of, workload_task
from airflow_gpu_provider.pods.checkpoint import check_location
from airflow_gpu_provider.pods.kueue import check_queue_name
from airflow_gpu_provider.pods.pod_try import PodTry
from airflow_gpu_provider.pods.preemptions import MAX_PREEMPTIONS, OnPreemption
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.triggers.pod import RECORD_VERSION
from airflow_gpu_provider.triggers.workload import GpuWorkloadTrigger
from airflow_gpu_provider.workloads.gpu_requests import nodes_needed
from airflow_gpu_provider.workloads.manifest import (
    FILES,
    is_still_text,
    named,
    read_manifest,
    with_queue,
)
from airflow_gpu_provider.workloads.workload_wait import WorkloadWait

if TYPE_CHECKING:
    from airflow.sdk import Context

OnFinish = Literal["delete_pod", "delete_succeeded_pod", "keep_pod"]


class GpuWorkloadOperator(GpuUseArguments):
    """Run a Kubernetes object that makes pods, on a GPU pool.

    Each pod template whose containers ask for nvidia.com/gpu is placed as GpuPodOperator places its pod; one without,
    like a RayJob's head, runs where its author wants it. The object's own controller says when it has ended. All pods'
    logs are in the task's log, and the error of a workload that fails is that of the pod that failed first.

    Args:
        manifest: The object: a dict, YAML, or the name of a .yaml file next to the DAG. Templated. A Job, JobSet,
            TrainJob, RayJob or PyTorchJob; its names and GPUs are the manifest's own. `metadata.name` is best made with
            an expression like `train-{{ ts_nodash | lower }}`: two runs at a time cannot have one name. Without a
            name it gets one from the task's id.
        gpu_pool: The pool. Default: that of the `gpu_nodes` block around it.
        block_id: Whose demand covers the pods: see GpuPodOperator.
        namespace: Where the object is. Default: the manifest's, else "default".
        queue_name: The LocalQueue of Kueue that admits it. Templated. Default: the manifest's label, else none.
            (Airflow's own `queue` says which worker runs the task.)
        shm_size: Size of /dev/shm in the containers with GPUs: see GpuPodOperator.
        schedule_timeout_seconds: How long its controller may take to make pods, and each pod to get a node. The time
            in which it is suspended does not count. Default 30 minutes.
        startup_timeout_seconds: How long each pod may take from its node to its running container. Default 20 minutes.
        deferrable: Wait in the triggerer. Default True.
        checkpoint, on_preemption, max_preemptions: See GpuPodOperator; a workload that resumes is deleted and created
            anew. What its own controller restarts (backoffLimit, maxRestarts) is not counted.
        get_logs: Write the pods' logs into the task's. Default True.
        utilization, idle_gpu_warning, idle_gpu_timeout: See gpu_use_arguments.
        on_finish_action: "delete_pod" (default) deletes the object and its pods when it has ended,
            "delete_succeeded_pod" only when it has succeeded, "keep_pod" never.
        reattach_on_restart: Go on with the object that this try has created before its worker died. Default True.
        termination_grace_period: Seconds that its pods have to stop by themselves when they are deleted. Default: their
            own.

    Raises:
        PoolSpecError: No pool is given, the manifest is of no known kind, has no pods with GPUs, or contradicts the
            pool.
        PodUnschedulable: No machine of the pool is large enough.
        PodFailed: It has failed; or a type derived from that (PodPreempted, PodDeadline, PodImageError, ...), by the
            pod that failed first, which is `details["rank"]`.
        TaskKilled: The task was told to stop; the object is deleted.
    """

    template_fields: Sequence[str] = ("manifest", "gpu_pool", "block_id", "namespace", "queue_name", "checkpoint")
    template_ext: Sequence[str] = FILES
    template_fields_renderers = {"manifest": "yaml"}
    operator_extra_links = (NodeGroupsLink(),)
    ui_color = "#d9f2d9"
    _doing = "ran a workload on pool {pool}"

    def __init__(
        self,
        *,
        manifest: Mapping[str, Any] | str,
        gpu_pool: GpuPool | None = None,
        block_id: str | None = None,
        namespace: str | None = None,
        queue_name: str | None = None,
        shm_size: str | None = None,
        schedule_timeout_seconds: int = 1800,
        startup_timeout_seconds: int = 1200,
        deferrable: bool = True,
        checkpoint: str | None = None,
        on_preemption: OnPreemption | None = None,
        max_preemptions: int = MAX_PREEMPTIONS,
        get_logs: bool = True,
        on_finish_action: OnFinish = "delete_pod",
        reattach_on_restart: bool = True,
        termination_grace_period: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.manifest = manifest
        # The pool of the block around it is nearer than one of default_args.
        self.gpu_pool = self._by_keyword("gpu_pool", gpu_pool, None) or current_pool() or gpu_pool
        if block_id is None:
            block_id = block_of(self.gpu_pool) if isinstance(self.gpu_pool, GpuPool) else ""
        self.block_id = block_id
        self.namespace = namespace
        self.queue_name = queue_name
        self.shm_size = shm_size
        self.schedule_timeout_seconds = schedule_timeout_seconds
        self.startup_timeout_seconds = startup_timeout_seconds
        self.deferrable = deferrable
        self.checkpoint = checkpoint
        self.on_preemption = on_preemption
        self.max_preemptions = max_preemptions
        self.get_logs = get_logs
        self.on_finish_action = _checked("on_finish_action", on_finish_action)
        self.reattach_on_restart = reattach_on_restart
        self.termination_grace_period = termination_grace_period
        self._try: PodTry | None = None
        self._handed_back: Mapping[str, Any] = {}
        preemptions_of(self)
        if isinstance(checkpoint, str) and not is_template(checkpoint):
            check_location(checkpoint)
        check_queue_name(queue_name)
        self._check_manifest()

    @property
    def nodes(self) -> int:
        """How many nodes its pods with GPUs fill, as EnsureGpuPoolOperator asks; 0 where only the run will tell."""
        if is_still_text(self.manifest) or not isinstance(self.gpu_pool, GpuPool) or not self.gpu_pool.is_rendered:
            return 0
        return nodes_needed(read_manifest(self.manifest), self.gpu_pool) or 0

    def resolve_template_files(self) -> None:
        """Read the manifest's file, where it names one, and check it while the DAG is parsed."""
        super().resolve_template_files()
        if not is_template(self.manifest):
            read_manifest(self.manifest)
        self._check_manifest()

    @property
    def rendered_pool(self) -> GpuPool:
        """The pool; raises PoolSpecError where there is none."""
        if not isinstance(self.gpu_pool, GpuPool):
            raise PoolSpecError(
                f"Task {self.task_id}: no GPU pool is given.",
                "Give gpu_pool=, or put the task into a `with gpu_nodes(...)` block.",
            )
        return self.gpu_pool

    # -- the run ---------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Run the workload; where it is taken away and may resume, run it again."""
        current = self._try
        if current is None or not current.is_resuming:
            current = self._begin(context, self._handed_back)
        return current.run()

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on when the trigger has an event: collect the logs, and resume or raise what the workload ended with."""
        return self._begin(context, event).go_on(Watched.of_event(event, WorkloadWait))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on also where the trigger itself died, or Airflow's own deferral timeout came first."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralTimeout, TaskDeferralError) as error:
            begun, ti = self._begin(context, {}), context["ti"]

            def namespace() -> str:
                told = ti.xcom_pull(key="pod_namespace", map_indexes=ti.map_index)
                return str(told or self.namespace or "default")

            return begun.go_on_without_event(error, namespace)

    def _go_on_here(self, event: Mapping[str, Any], context: Context) -> Any:
        self._handed_back = event
        return super()._go_on_here(event, context)

    def on_kill(self) -> None:
        """Delete the workload; the task then ends with TaskKilled, never green.

        Airflow calls it after a timeout too, when that has been dealt with.
        """
        if self._try is not None:
            if self._try.has_timed_out:
                return
            self._try.kill()
        self._stop.ask(TaskKilled(f"Task {self.task_id} was told to stop; its workload is deleted.", "Run it again."))

    def _begin(self, context: Context, event: Mapping[str, Any]) -> PodTry:
        """Return the try of this run of the process, begun anew or gone on with."""
        self._try = PodTry(workload_task(self, context), event)
        return self._try

    @cached_property
    def named_manifest(self) -> dict[str, Any]:
        """The rendered manifest, with its queue, its namespace and its name."""
        return named(
            with_queue(read_manifest(self.manifest), self.queue_name),
            namespace=self.namespace,
            prefix=self.task_id,
        )

    def _defer(self, record: dict[str, Any], timeout: timedelta) -> None:

        trigger = GpuWorkloadTrigger({"version": RECORD_VERSION, **record})
        self.defer(trigger=trigger, method_name="trigger_reentry", timeout=timeout)

    def _check_manifest(self) -> None:
        if not is_still_text(self.manifest):
            with_queue(read_manifest(self.manifest), self.queue_name)


def _checked(name: str, value: OnFinish) -> OnFinish:
    if value not in ("delete_pod", "delete_succeeded_pod", "keep_pod"):
        raise PoolSpecError(f"{name}={value!r}.", "It is 'delete_pod', 'delete_succeeded_pod' or 'keep_pod'.")
    return value
