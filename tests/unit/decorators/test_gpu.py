"""@task.gpu: a function becomes a GpuPodOperator, in a block and out of it, mapped and not."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task, task_group
from airflow.sdk.exceptions import TaskDeferred
from kubernetes.client import V1EnvVar

from airflow_gpu_provider import EksGpuPool, gpu_nodes
from airflow_gpu_provider.decorators.gpu import GpuDecoratedOperator
from airflow_gpu_provider.errors import PodPreempted, PoolSpecError
from airflow_gpu_provider.get_provider_info import get_provider_info
from airflow_gpu_provider.operators.training import TrainingOperator
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from airflow_gpu_provider.training.life.pod_try import PodTry
from airflow_gpu_provider.training.place.pod_placement import place
from airflow_gpu_provider.triggers.pod import GpuPodTrigger
from tests.sandbox.running import context_of

POOL = EksGpuPool(
    name="train-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=("g6.12xlarge",), max_nodes=1
)


OWN = V1EnvVar(name="A", value="1")


@pytest.fixture
def dag() -> DAG:
    return DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1))


def test_airflow_knows_the_decorator() -> None:
    assert {"class-name": "airflow_gpu_provider.decorators.gpu.gpu_task", "name": "gpu"} in get_provider_info()[
        "task-decorators"
    ]


def test_a_function_becomes_a_pod_on_the_pool(dag: DAG) -> None:
    with dag:

        @task.gpu(gpu_pool=POOL, gpus=2, image="python:3.12", do_xcom_push=True)
        def count_gpus(wanted: int) -> int:
            return wanted

        count_gpus(2)
    operator = dag.get_task("count_gpus")
    assert isinstance(operator, GpuDecoratedOperator)
    assert (operator.gpu_pool, operator.gpus, operator.deferrable, operator.name) == (POOL, 2, True, "count-gpus")
    assert operator.op_args == (2,) or list(operator.op_args) == [2]
    assert "gpu_pool" in operator.template_fields


def test_a_pod_that_follows_a_preempted_one_has_the_function_too(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is built in the worker that collects the first one, which has not executed the task before."""

    def taken_away(*_: Any) -> None:
        raise PodPreempted("Its node left.")

    def deferred(attempt: PodAttempt) -> None:
        raise TaskDeferred(trigger=GpuPodTrigger({}), method_name="trigger_reentry")

    monkeypatch.setattr(PodTry, "_known_owner", lambda _: None)
    monkeypatch.setattr(PodTry, "_collect_or_defer", taken_away)
    monkeypatch.setattr(PodTry, "_prepare_next_attempt", lambda *_: None)
    monkeypatch.setattr(PodAttempt, "start", deferred)
    with dag:

        @task.gpu(gpu_pool=POOL, image="python:3.12", on_preemption="resume")
        def train(rate: float) -> None: ...

        train(0.1)
    operator = dag.get_task("train")
    assert isinstance(operator, GpuDecoratedOperator)
    event = {"saw_end": True, "name": "train-x", "namespace": "ml", "uid": "u1"}
    with pytest.raises(TaskDeferred):
        operator.trigger_reentry(context_of(operator), event)
    assert operator.cmds[0] == "bash"
    assert {"__PYTHON_SCRIPT", "__PYTHON_INPUT"} <= {variable.name for variable in operator.env_vars}


def test_more_gpus_than_a_machine_has_are_refused_when_the_dag_is_parsed(dag: DAG) -> None:
    @task.gpu(gpu_pool=POOL, gpus=8, image="python:3.12")
    def train() -> None: ...

    with pytest.raises(PoolSpecError, match="has 4"), dag:
        train()


def test_the_pool_is_that_of_the_block_around_the_call(dag: DAG) -> None:
    other = EksGpuPool(
        name="other", cluster_name="k8s-ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=1
    )

    @task.gpu(image="python:3.12")
    def train(rate: float) -> None: ...

    with dag:
        with gpu_nodes(POOL):
            train.override(task_id="one")(0.1)
            train.override(task_id="many").expand(rate=[0.1, 0.2])
        with gpu_nodes(other):
            train.override(task_id="other_many").expand(rate=[0.1, 0.2])
    assert dag.get_task("one").gpu_pool == POOL
    assert dag.get_task("many").partial_kwargs["gpu_pool"] == POOL
    assert dag.get_task("other_many").partial_kwargs["gpu_pool"] == other


def test_a_pool_that_is_given_or_mapped_stays(dag: DAG) -> None:
    other = EksGpuPool(
        name="other", cluster_name="k8s-ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=1
    )
    from airflow_gpu_provider import GpuPodOperator

    with dag, gpu_nodes(POOL):
        GpuPodOperator.partial(task_id="given", image="busybox", gpu_pool=other).expand(arguments=[["a"], ["b"]])
        GpuPodOperator.partial(task_id="mapped", image="busybox").expand(gpu_pool=[POOL, other])
    assert dag.get_task("given").partial_kwargs["gpu_pool"] == other
    assert "gpu_pool" not in dag.get_task("mapped").partial_kwargs


def test_two_preemptions_in_one_worker_leave_the_environment(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[list[str]] = []
    operator: Any = None

    def take_away(self: PodAttempt) -> None:
        pod = operator.build_pod_request_obj(context)
        built.append([variable.name for variable in pod.spec.containers[0].env])
        if len(built) < 3:
            raise PodPreempted("Its node left.")

    monkeypatch.setattr(PodTry, "_known_owner", lambda _: None)
    monkeypatch.setattr(PodTry, "_prepare_next_attempt", lambda *_: None)
    monkeypatch.setattr(PodTry, "_collect", lambda *_: "result")
    monkeypatch.setattr(PodAttempt, "start", take_away)
    monkeypatch.setattr(PodAttempt, "watch_here", lambda _: None)
    with dag:

        @task.gpu(gpu_pool=POOL, image="python:3.12", deferrable=False, on_preemption="resume", env_vars=[OWN])
        def train(rate: float) -> None: ...

        train(0.1)
    operator = dag.get_task("train")
    context = context_of(operator)
    assert operator.execute(context) == "result"
    assert built[0].count("__PYTHON_SCRIPT") == 1
    assert built[0] == built[1] == built[2]


def used_by(way: str, made: Any) -> None:
    """Let a task of the DAG use, or only follow, what `made` returns."""

    @task
    def show(value: Any = None, beside: Any = None) -> None: ...

    match way:
        case "an argument":
            show(made)
        case "an item of an argument":
            show([{"a": made}])
        case "a mapped task":
            show.expand(value=made)
        case "beside what is mapped":
            show.partial(beside=made).expand(value=[1, 2])
        case "an operator's template field":
            BashOperator(task_id="show", bash_command="true", env={"A": made})
        case "a mapped group":
            task_group(group_id="group")(lambda value: show(value)).expand(value=made)
        case "order only":
            made >> show(1)


USED = pytest.mark.parametrize(
    ("way", "is_used"),
    [
        ("an argument", True),
        ("an item of an argument", True),
        ("a mapped task", True),
        ("beside what is mapped", True),
        ("an operator's template field", True),
        ("a mapped group", True),
        ("order only", False),
    ],
)


@USED
def test_what_a_function_returns_is_pushed_where_a_task_uses_it(dag: DAG, way: str, is_used: bool) -> None:
    with dag:
        used_by(way, task.gpu(gpu_pool=POOL, image="python:3.12")(count)("abc"))
    dag.resolve_template_files()
    assert dag.get_task("count").do_xcom_push is is_used


@USED
def test_so_it_is_where_the_function_is_mapped(
    dag: DAG, way: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingOperator, "execute", lambda self, _: self.cmds)
    with dag:
        used_by(way, task.gpu(gpu_pool=POOL, image="python:3.12")(count).expand(rows=["a", "b"]))
    mapped: Any = dag.get_task("count")
    operator = mapped.unmap({"op_kwargs": {"rows": "a"}})
    commands = operator.execute(context_of(operator))
    assert operator.do_xcom_push is is_used
    assert ("/airflow/xcom/return.json" in commands[-1]) is is_used


def test_an_author_who_says_no_is_heard(dag: DAG) -> None:
    with dag:
        used_by("an argument", task.gpu(gpu_pool=POOL, image="python:3.12", do_xcom_push=False)(count)("abc"))
    dag.resolve_template_files()
    assert dag.get_task("count").do_xcom_push is False


LARGE = "x" * 100_000  # 130 KiB in base64


def count(rows: str) -> int:
    return len(rows)


def test_large_argument_is_refused_when_a_dag_with_a_block_is_parsed(dag: DAG) -> None:
    """The block's nodes would come before the task runs."""
    counts = task.gpu(image="python:3.12")(count)
    with dag, gpu_nodes(POOL):
        counts(LARGE[:90_000])
        with pytest.raises(
            PoolSpecError,
            match=r"^Task count__1 of DAG \w+: The function.s arguments: 130 KiB are more than .*, 128 KiB.*a URL",
        ):
            counts(LARGE)
        counts(counts(LARGE[:9]))  # known when it runs


@pytest.mark.parametrize("size", [90_000, 100_000])
def test_large_argument_is_refused_before_the_pod_exists(dag: DAG, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        TrainingOperator,
        "execute",
        lambda self, context: place(self.build_pod_request_obj(context), self._placement()),
    )
    with dag:
        task.gpu(gpu_pool=POOL, image="python:3.12", deferrable=False)(count)(LARGE[:size])
    operator: Any = dag.get_task("count")
    with pytest.raises(PoolSpecError, match="arguments of container base") if size > 98_000 else nullcontext():
        operator.execute(context_of(operator))


def loss() -> dict[str, float]:
    return {"loss": 0.1}


@pytest.mark.parametrize(
    ("function", "chosen", "several"),
    [(loss, {}, True), (loss, {"multiple_outputs": False}, False), (count, {}, False)],
)
def test_a_mapping_becomes_an_xcom_for_each_key_as_with_kubernetes(
    dag: DAG, function: Any, chosen: dict[str, Any], several: bool
) -> None:
    with dag:
        task.gpu(gpu_pool=POOL, image="python:3.12", **chosen)(function)(*[""] * (function is count))
        task.kubernetes(task_id="theirs", image="python:3.12", **chosen)(function)(*[""] * (function is count))
    ours, theirs = dag.get_task(function.__name__), dag.get_task("theirs")
    assert ours.multiple_outputs is theirs.multiple_outputs is several


@pytest.mark.parametrize(
    "way", ["an argument", "an item of an argument", "beside what is mapped", "an operator's template field"]
)
def test_a_key_that_a_result_never_has_is_refused_when_the_dag_is_parsed(dag: DAG, way: str) -> None:
    with dag:
        used_by(way, task.gpu(gpu_pool=POOL, image="python:3.12")(count)("abc")["loss"])
    said = r"Task show is given 'loss' of what task count returns.* `-> dict`.*multiple_outputs=True"
    with pytest.raises(PoolSpecError, match=said):
        dag.resolve_template_files()


def test_of_a_mapped_function_it_is_refused_before_there_is_a_pod(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingOperator, "execute", lambda self, _: pytest.fail("a pod"))
    with dag:
        used_by("an argument", task.gpu(gpu_pool=POOL, image="python:3.12")(count).expand(rows=["a"])["loss"])
    mapped: Any = dag.get_task("count")
    operator = mapped.unmap({"op_kwargs": {"rows": "a"}})
    with pytest.raises(PoolSpecError, match="Task show is given 'loss'"):
        operator.execute(context_of(operator))


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("timeline", {}),
        ("pod_name", {}),
        ("loss", {"multiple_outputs": True}),
        ("loss", {"post_execute": lambda context, result: context["ti"].xcom_push("loss", result)}),
    ],
)
def test_a_key_that_it_may_have_is_taken(dag: DAG, key: str, arguments: dict[str, Any]) -> None:
    with dag:
        used_by("an argument", task.gpu(gpu_pool=POOL, image="python:3.12", **arguments)(count)("abc")[key])
    dag.resolve_template_files()
    assert dag.get_task("count").do_xcom_push
