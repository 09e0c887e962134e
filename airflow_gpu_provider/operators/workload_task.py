"""What GpuWorkloadOperator gives to the life of its workloads: a PodTask with a manifest instead of a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.pods.hook import PoolHook
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.pods.placement import Placement
from airflow_gpu_provider.pods.preemptions import Preemptions
from airflow_gpu_provider.pods.store import CarefulPodManager
from airflow_gpu_provider.pods.task import PodTask
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.pods.task_log import TaskLog
from airflow_gpu_provider.run_identity import lock_holder, run_key
from airflow_gpu_provider.workloads.workload_attempt import WorkloadAttempt

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.operators.workload import GpuWorkloadOperator


def workload_task(operator: GpuWorkloadOperator, context: Context) -> PodTask:
    """Return the operator's try of this context.

    Raises:
        PoolSpecError: It has no pool.
    """
    ti, pool = context["ti"], operator.rendered_pool
    hook = PoolHook(pool)
    cluster = TaskCluster(
        pool=pool,
        hook=hook,
        base_container="",
        make_manager=lambda: CarefulPodManager(kube_client=hook.core_v1_client),
    )
    return PodTask(
        log=operator.log,
        pod_log=_log(operator),
        cluster=cluster,
        stop=operator._stop,
        placement=Placement(pool=pool, gpus=0, base_container="", shm_size=operator.shm_size),
        checkpoint=operator.checkpoint,
        preemptions=preemptions_of(operator),
        schedule_seconds=operator.schedule_timeout_seconds,
        start_seconds=operator.startup_timeout_seconds,
        execution_timeout=operator.execution_timeout,
        started_at=ti.start_date,
        grace_seconds=operator.termination_grace_period,
        reattaches=operator.reattach_on_restart,
        has_result=False,
        deferrable=operator.deferrable,
        is_kept_when_killed=False,
        holder=lock_holder(context),
        owner=lambda: Ownership.of(ti, run_key(context, pool.name, operator.block_id)),
        execute=lambda: operator.execute(context),
        build=_of_a_pod,
        create=_of_a_pod,
        defer=operator._defer,
        extract_result=_of_a_pod,
        release=_of_a_pod,
        call_back=_of_a_pod,
        push=lambda key, value: ti.xcom_push(key=key, value=value),
        on_pod=lambda pod: None,
        gpus=operator.gpu_watching,
        manifest=lambda: operator.named_manifest,
        new_attempt=WorkloadAttempt,
        keeps=lambda succeeded: _is_kept(operator, succeeded),
    )


def preemptions_of(operator: GpuWorkloadOperator) -> Preemptions:
    return Preemptions.of(
        operator.on_preemption,
        max_preemptions=operator.max_preemptions,
        has_checkpoint=operator.checkpoint is not None,
    )


def _log(operator: GpuWorkloadOperator) -> TaskLog:
    return TaskLog(
        log=operator.log,
        containers=True,
        init_containers=None,
        get_logs=operator.get_logs,
        with_name=True,
        formatter=None,
        in_triggerer=operator.deferrable,
    )


def _is_kept(operator: GpuWorkloadOperator, succeeded: bool) -> bool:
    action = operator.on_finish_action
    return action != "delete_pod" and not (succeeded and action == "delete_succeeded_pod")


def _of_a_pod(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("A workload's pods are made by its controller.")
