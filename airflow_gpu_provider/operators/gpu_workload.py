"""GpuWorkloadOperator: places a Job, JobSet, TrainJob, RayJob or PyTorchJob on a GPU pool, and waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.errors import CodeUnusable, PoolSpecError
from airflow_gpu_provider.operators.pod_arguments import check_pod_arguments
from airflow_gpu_provider.operators.training import TrainingOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.pool_operator import current_pool, of_task
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.object_attempt import WorkloadAttempt
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import MAX_PREEMPTIONS, AttemptRecord, OnPreemption, PodSettings, Run
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.place.fit import (
    asks_for_gpus,
    container_with_gpus,
    gpus_asked,
    gpus_of_all,
    nodes_needed,
)
from airflow_gpu_provider.training.place.kinds import Manifest, templates_of
from airflow_gpu_provider.training.place.manifest import (
    FILES,
    check_manifest_namespace,
    is_still_text,
    named,
    queue_in,
    read_manifest,
    with_queue,
)
from airflow_gpu_provider.training.place.pod_placement import (
    Placement,
    check_code_has_room,
    check_gpus,
    check_queue_name,
)

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

_WITH_CODE = "Job"
"""The kind whose pods get the code of a task."""

OnFinish = Literal["delete_pod", "delete_succeeded_pod", "keep_pod"]


class GpuWorkloadOperator(TrainingOperator):
    """Run a Kubernetes object that creates pods on a GPU pool.

    Each pod template whose containers request nvidia.com/gpu is placed as GpuPodOperator places its pod; one without,
    like a RayJob's head, runs where its author wants it. The object's own controller decides when it has ended. All
    pods' logs are in the task's log, and a failed workload's error is that of the pod that failed first.

    Args:
        manifest: The object: a dict, YAML, or the name of a .yaml file next to the DAG. Templated. A Job, JobSet,
            TrainJob, RayJob or PyTorchJob; its names and GPUs are the manifest's own. Two concurrent runs
            cannot share a name: give `metadata.generateName`, like `train-`, instead of `metadata.name`. With neither
            it gets a name from the task's id.
        gpu_pool: The pool. Default: the pool of the enclosing `gpu_nodes` block.
        block_id: The demand that covers the pods: see GpuPodOperator.
        namespace: The object's namespace. Default: the manifest's, else "default".
        queue_name: The Kueue LocalQueue that admits it. Templated. Default: the manifest's label, else none.
            (Airflow's own `queue` selects the worker that runs the task.)
        shm_size: Size of /dev/shm in the containers with GPUs: see GpuPodOperator.
        schedule_timeout_seconds: How long its controller may take to create pods, and each pod to get a node. Time
            while it is suspended does not count. Default 30 minutes.
        startup_timeout_seconds: How long each pod may take from getting a node to its running container. Default 20
            minutes.
        deferrable: Wait in the triggerer. Default True.
        checkpoint, on_preemption, max_preemptions: See GpuPodOperator; a workload that resumes is deleted and created
            again. Restarts by its own controller (backoffLimit, maxRestarts) do not count.
        get_logs: Write the pods' logs to the task's log. Default True.
        utilization, idle_gpu_warning, idle_gpu_timeout: See TrainingOperator.
        code: See TrainingOperator; for a Job alone, whose container with the GPUs gets it. In default_args it is for
            the tasks that can have it.
        on_finish_action: "delete_pod" (default) deletes the object and its pods when it has ended,
            "delete_succeeded_pod" only when it has succeeded, "keep_pod" never.
        reattach_on_restart: Continue with the object that this try created before its worker died. Default True.
        termination_grace_period: Seconds that its pods have to stop when they are deleted. Default: their own.

    Raises:
        PoolSpecError: No pool is given, or the manifest is of no known kind, has no GPU pods, or contradicts the pool.
        PodUnschedulable: No machine of the pool is large enough.
        ControllerNotRunning: It had neither a status nor a pod five minutes after it was created, or admitted.
        PodFailed: It has failed; or a type derived from that (PodPreempted, PodDeadline, PodImageError, ...), from the
            pod that failed first, which is `details["rank"]`.
        TaskKilled: The task was killed; the object is deleted.
    """

    template_fields: Sequence[str] = ("manifest", "gpu_pool", "block_id", "namespace", "queue_name", "checkpoint")
    template_ext: Sequence[str] = FILES
    template_fields_renderers = {"manifest": "yaml"}
    _stop_message = "received SIGTERM; its workload is deleted."
    _doing = "ran a workload on pool {pool}"

    def __init__(
        self,
        *,
        manifest: Json | str,
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
        self._set_pool(gpu_pool, block_id)
        self.namespace = namespace
        self.queue_name = queue_name
        self.shm_size = shm_size
        self.schedule_timeout_seconds = schedule_timeout_seconds
        self.startup_timeout_seconds = startup_timeout_seconds
        self.deferrable = deferrable
        self.get_logs = get_logs
        if on_finish_action not in ("delete_pod", "delete_succeeded_pod", "keep_pod"):
            fix = "It is 'delete_pod', 'delete_succeeded_pod' or 'keep_pod'."
            raise PoolSpecError(f"on_finish_action={on_finish_action!r}.", fix)
        self.on_finish_action = on_finish_action
        self.reattach_on_restart = reattach_on_restart
        self.termination_grace_period = termination_grace_period
        check_pod_arguments(vars(self))
        self._set_preemptions(checkpoint, on_preemption, max_preemptions)
        check_queue_name(queue_name)
        self._check_manifest()
        self._note_what_is_asked()

    def _asked(self) -> Mapping[str, object]:
        return {"manifest": self.manifest, "code": self.code}

    @property
    def nodes(self) -> int:
        """How many nodes its GPU pods fill, for EnsureGpuPoolOperator; 0 if known only at run time."""
        if is_still_text(self.manifest) or not isinstance(self.gpu_pool, GpuPool) or not self.gpu_pool.is_rendered:
            return 0
        return nodes_needed(read_manifest(self.manifest), self.gpu_pool) or 0

    def resolve_template_files(self) -> None:
        """Read the manifest's file, if it names one, and check it when the DAG is parsed."""
        super().resolve_template_files()
        try:
            self._check_manifest(is_file_read=True)
        except PoolSpecError as error:
            raise of_task(error, self.task_id, self._dag) from error.__cause__

    # -- the run ---------------------------------------------------------------------------------------------

    @cached_property
    def named_manifest(self) -> Manifest:
        """The rendered manifest, with its queue, its namespace and its name."""
        manifest = with_queue(read_manifest(self.manifest), self.queue_name)
        self._leave_code_to_others(manifest)
        _check_takes_code(manifest, self.code)
        return named(manifest, namespace=self.namespace, prefix=self.task_id)

    def _run(self, context: Context) -> Run:
        self._leave_code_to_others(read_manifest(self.manifest))
        return super()._run(context)

    def _leave_code_to_others(self, manifest: Manifest) -> None:
        """Have no code where only default_args give it, and the manifest's pods cannot have it."""
        if manifest["kind"] != _WITH_CODE:
            self.code = self._by_keyword("code", self.code, None)

    def _cluster(self) -> PoolHook:
        return PoolHook(self.rendered_pool)

    def _pod_log(self) -> TaskLog:
        return TaskLog(
            log=self.log,
            containers=True,
            init_containers=None,
            get_logs=self.get_logs,
            with_name=True,
            formatter=None,
            in_triggerer=self.deferrable,
        )

    def _settings(self) -> PodSettings:
        pool = self.rendered_pool
        return self._settings_with(Placement(pool=pool, gpus=0, base_container="", shm_size=self.shm_size))

    @property
    def _gpus_in_all(self) -> int | None:
        return gpus_of_all(self.named_manifest)

    def new_attempt(self, run: Run, owner: Callable[[], Ownership], record: AttemptRecord) -> TaskAttempt:
        """Return an attempt: a workload."""
        return WorkloadAttempt(run, self, owner, record)

    def _check_manifest(self, *, is_file_read: bool = False) -> None:
        if not is_still_text(self.manifest) or (is_file_read and not is_template(self.manifest)):
            self._leave_code_to_others(read_manifest(self.manifest))
            _check_manifest(vars(self))

    @classmethod
    def _check_partial(cls, made: OperatorPartial, kwargs: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
        super()._check_partial(made, kwargs, default_args)
        given = {"gpu_pool": current_pool(), **default_args, **kwargs}
        check_pod_arguments({name: value for name, value in given.items() if value is not None})
        if "manifest" in kwargs and not is_still_text(kwargs["manifest"]):
            is_job = read_manifest(kwargs["manifest"])["kind"] == _WITH_CODE
            _check_manifest(given if is_job else {**given, "code": kwargs.get("code")})


def _check_manifest(given: Mapping[str, Any]) -> None:
    """Check the manifest among a task's arguments."""
    pool = given.get("gpu_pool")
    manifest = with_queue(read_manifest(given["manifest"]), given.get("queue_name"))
    check_manifest_namespace(manifest, given.get("namespace"))
    _check_takes_code(manifest, given.get("code"))
    asked = gpus_asked(manifest)
    if given.get("code") is not None:
        _check_mounts_beside_code(manifest)
    for gpus in asked:
        if isinstance(pool, GpuPool) and pool.is_rendered:
            check_gpus(pool, gpus)
    if asked and isinstance(pool, GpuPool):
        annotations = [*((manifest.get("metadata") or {}).get("annotations") or {})]
        pool.check_nodes_come(nodes=1, gpus=0, queue=queue_in(manifest), annotations=annotations)


def _check_takes_code(manifest: Manifest, code: object) -> None:
    """Raise CodeUnusable for code with a kind whose pods this package does not describe alone."""
    if code is not None and manifest["kind"] != _WITH_CODE:
        raise CodeUnusable(
            f"code={code!r} with a manifest of kind {manifest['kind']}.",
            "Give a Job, or run the training with GpuPodOperator(nodes=...); or put the code into the image.",
        )


def _check_mounts_beside_code(manifest: Manifest) -> None:
    """Raise PoolSpecError if a container that gets code mounts something in its place."""
    for each in filter(asks_for_gpus, templates_of(manifest)):
        base = container_with_gpus(each)
        mounts = base.get("volumeMounts")
        paths = [one.get("mountPath") for one in mounts if isinstance(one, dict)] if isinstance(mounts, list) else ()
        check_code_has_room(base["name"], paths)
