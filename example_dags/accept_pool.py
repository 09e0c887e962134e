"""Whether this package works on your account: a pool's nights, tried there as a DAG, with a report at the end.

What `airflow gpu accept` does, under your scheduler and triggerer. It costs money: trigger it with `it_costs` set; the
first task logs the most that it can cost, and fails without `it_costs`. The report is the last task's result
and in its log, and contains no secrets: docs/acceptance.md.

While the second night's pod runs, kill a triggerer or a worker, if you like: the night goes on.

The Variables are those of `nightly_training_eks.py`, and `accept_image`, an image with `vectorAdd`, `python3` or
`nvcc`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_gpu_provider import (
    DeleteGpuPoolOperator,
    EksGpuPool,
    EnsureGpuPoolOperator,
    GpuPodOperator,
    GpuPoolDoctorOperator,
    gpu_nodes,
)
from airflow_gpu_provider.acceptance.gpu_program import COMMAND
from airflow_gpu_provider.acceptance.pools import AcceptanceCost, accepted, price_of, with_impossible_first

NIGHT = timedelta(minutes=45)

train_gpu = EksGpuPool(
    name="train-gpu",
    cluster_name="{{ var.value.get('gpu_cluster', 'k8s-ml') }}",
    region="{{ var.value.get('gpu_region', 'us-west-2') }}",
    instance_types=["g6.xlarge"],
    max_nodes=1,
    price_per_hour=0.8048,
)

# The same groups under names of their own, for one node; and a pool that would rather have a type that does not exist.
pool = accepted(train_gpu, NIGHT)
fallback = with_impossible_first(pool)
budget = AcceptanceCost(nights=3, night=NIGHT, price=price_of(pool, None), currency=pool.currency)
IMAGE = "{{ var.value.get('accept_image', 'nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0-ubuntu22.04') }}"


@task
def say_what_it_may_cost() -> str:
    context = get_current_context()
    print(budget.in_words())
    if not context["params"]["it_costs"]:
        raise AirflowFailException(f"{budget.in_words()} Trigger the DAG with it_costs to do it.")
    return budget.in_words()


@task
def no_change_is_planned(planned: dict) -> None:
    changes = [line for line in planned["plan"] if line.startswith(("  + ", "  ~ "))]
    if changes:
        raise AirflowFailException(f"A second night plans changes: {'; '.join(changes)}")


@task(trigger_rule="all_done", retries=3, retry_delay=timedelta(minutes=1))
def report(steps: dict, image: str) -> str:
    from airflow_gpu_provider.acceptance.report import report_of_run

    context = get_current_context()
    rendered = [each.resolve(context) for each in (pool, fallback)]
    text, has_passed = report_of_run(context["ti"], pools=rendered, image=image, budget=budget, steps=steps)
    print(text)
    if not has_passed:
        raise AirflowFailException("Not each step has passed: see the report above.")
    return text


with DAG(
    "accept_pool",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    params={"it_costs": Param(False, type="boolean", description="it costs money, and I want it")},
    doc_md=__doc__,
    tags=["gpu", "eks"],
):
    bound = say_what_it_may_cost()
    doctor = GpuPoolDoctorOperator(task_id="doctor", gpu_pools=[pool])

    with gpu_nodes(pool, nodes=1, group_id="first_night") as first:
        GpuPodOperator(task_id="first_pod", gpus=1, image=IMAGE, cmds=list(COMMAND), do_xcom_push=True)

    plan = EnsureGpuPoolOperator(task_id="plan", gpu_pool=pool, nodes=1, dry_run=True)
    unchanged = no_change_is_planned(plan.output)

    with gpu_nodes(pool, nodes=1, group_id="second_night") as second:
        GpuPodOperator(task_id="second_pod", gpus=1, image=IMAGE, cmds=list(COMMAND), do_xcom_push=True)

    with gpu_nodes(fallback, nodes=1, group_id="fall_back") as third:
        GpuPodOperator(task_id="third_pod", gpus=1, image=IMAGE, cmds=list(COMMAND), do_xcom_push=True)

    delete = [
        DeleteGpuPoolOperator(task_id=f"delete_{name}", gpu_pool=each, force=True, trigger_rule="all_done", retries=3)
        for name, each in (("pool", pool), ("fallback", fallback))
    ]
    told = report(
        steps={
            "doctor": ["doctor"],
            "a night from zero": [
                "first_night.ensure",
                "first_night.device_plugin",
                "first_pod",
                "first_night.scale_down",
            ],
            "a second night": ["plan", "second_night.ensure", "second_pod", "second_night.scale_down"],
            "a first candidate that does not exist": ["fall_back.ensure", "third_pod", "fall_back.scale_down"],
            "delete": ["delete_pool", "delete_fallback"],
        },
        image=IMAGE,
    )

    bound >> doctor >> first >> plan >> unchanged >> second >> third >> delete >> told
