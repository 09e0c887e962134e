"""The block's shape: setup, teardown, and a leaf of its own - and that Airflow's own names keep their meaning."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator, TaskGroup, task, task_group
from airflow.serialization.serialized_objects import DagSerialization

from airflow_gpu_provider import (
    EksGpuPool,
    EnsureGpuPoolOperator,
    GpuPodOperator,
    InstallDevicePluginOperator,
    ScaleDownSensor,
    gpu_nodes,
)
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.block_verdict import BlockVerdictOperator
from airflow_gpu_provider.tasks.pool_operator import current_pool

POOL = EksGpuPool(
    name="train-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2
)


SETUPS = {"train-gpu.begin", "train-gpu.ensure"}


@pytest.fixture
def dag() -> DAG:
    return DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1))


def pod(task_id: str, **kwargs: Any) -> GpuPodOperator:
    return GpuPodOperator(task_id=task_id, image="busybox", cmds=["true"], **kwargs)


def upstream(dag: DAG, task_id: str) -> set[str]:
    return set(dag.get_task(task_id).upstream_task_ids)


REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/blocks.md", "docs/index.md"])
def test_each_document_tells_how_many_tasks_a_block_adds(dag: DAG, page: str) -> None:
    with dag, gpu_nodes(POOL, gpus=1):
        pod("train")
    told = re.findall(r"(\w+) tasks\*{0,2} around\s+yours", (REPOSITORY / page).read_text())
    assert (told, len(dag.tasks) - 1) == (["six"], 6)


def test_the_block_is_setup_tasks_teardown_and_a_leaf(dag: DAG) -> None:
    with dag, gpu_nodes(POOL, gpus=2) as block:
        pod("train") >> pod("evaluate")
    ensure, scale_down = dag.get_task("train-gpu.ensure"), dag.get_task("train-gpu.scale_down")
    assert ensure.is_setup
    assert ensure.gpus == 2
    assert scale_down.is_teardown
    assert scale_down.on_failure_fail_dagrun
    assert upstream(dag, "train-gpu.device_plugin") == {"train-gpu.ensure"}
    assert upstream(dag, "train") == {"train-gpu.device_plugin"}
    assert upstream(dag, "train-gpu.ensure") == {"train-gpu.begin"}
    assert upstream(dag, "train-gpu.scale_down") == {"evaluate", *SETUPS}
    done = dag.get_task("train-gpu.done")
    assert done.is_teardown
    assert done.on_failure_fail_dagrun
    before = ["train-gpu.begin", "train-gpu.ensure", "train-gpu.device_plugin"]
    assert done.block_tasks == [*before, "train", "evaluate", "train-gpu.scale_down"]
    assert (done.deciding_tasks, done.retries) == (["evaluate", "train-gpu.scale_down"], 0)
    assert upstream(dag, "train-gpu.done") == {"train-gpu.scale_down", "train-gpu.witness", *SETUPS}
    assert upstream(dag, "train-gpu.witness") == {"train-gpu.scale_down"}
    assert [leaf.task_id for leaf in block.get_leaves()] == ["evaluate"]
    assert [root.task_id for root in block.get_roots()] == ["train-gpu.begin"]


def test_what_the_block_may_cost_is_ensures_to_hold(dag: DAG) -> None:
    with dag, gpu_nodes(replace(POOL, price_per_hour="list"), max_cost=250):
        pod("train")
    assert dag.get_task("train-gpu.ensure").max_cost == 250


def test_images_of_the_block_are_ensures_to_have_pulled(dag: DAG) -> None:
    with dag, gpu_nodes(POOL, prefetch=["train:1"], ensure_args={"prefetch_secrets": ["regcred"]}):
        pod("train")
    ensure = dag.get_task("train-gpu.ensure")
    assert (ensure.prefetch, ensure.prefetch_secrets) == (["train:1"], ["regcred"])


@pytest.mark.parametrize(("price", "max_cost"), [(None, 250), (1.0, 0), (1.0, "much")])
def test_what_no_price_or_no_amount_bounds_is_refused(dag: DAG, price: Any, max_cost: Any) -> None:
    priced = replace(POOL, price_per_hour=price)
    with pytest.raises(PoolSpecError, match="max_cost="), dag, gpu_nodes(priced, max_cost=max_cost):
        pod("train")


def test_a_pool_s_name_is_no_pool(dag: DAG) -> None:
    refused = pytest.raises(PoolSpecError, match=r"gpu_nodes: gpu_pool='train-gpu'. Give the pool itself")
    with refused, dag, gpu_nodes("train-gpu"):  # type: ignore[arg-type]
        pod("train")


def test_what_comes_after_the_block_waits_for_its_tasks_not_for_the_teardown(dag: DAG) -> None:
    with dag:
        before, after = EmptyOperator(task_id="extract"), EmptyOperator(task_id="report")
        with gpu_nodes(POOL) as block:
            pod("train")
        before >> block >> after
    assert upstream(dag, "train-gpu.begin") == {"extract"}
    assert upstream(dag, "report") == {"train"}


def test_what_comes_after_a_group_around_the_block_waits_for_the_block_s_tasks(dag: DAG) -> None:
    with dag:
        with TaskGroup("night") as night, gpu_nodes(POOL):
            pod("train")
        night >> EmptyOperator(task_id="report")
    assert upstream(dag, "report") == {"night.train"}


def test_a_block_in_a_block_decides_by_its_work(dag: DAG) -> None:
    with dag, gpu_nodes(POOL), gpu_nodes(EksGpuPool(**_other())):
        pod("train")
    assert dag.get_task("train-gpu.done").deciding_tasks == ["train", "train-gpu.scale_down"]


def test_every_loose_end_of_the_block_is_tied(dag: DAG) -> None:
    with dag, gpu_nodes(POOL):
        first = pod("first")
        with TaskGroup("sweep"):
            one, _ = pod("one"), pod("two")
        cleanup = EmptyOperator(task_id="cleanup").as_teardown(setups=first)
        first >> one >> cleanup
    assert dag.get_task("train-gpu.done").deciding_tasks[:-1] == ["sweep.one", "sweep.two"]
    assert upstream(dag, "train-gpu.scale_down") == {"cleanup", "sweep.two", *SETUPS}
    assert upstream(dag, "sweep.two") == {"train-gpu.device_plugin"}


def test_mapped_and_taskflow_tasks_work_in_the_block(dag: DAG) -> None:
    with dag, gpu_nodes(POOL):

        @task
        def rates() -> list[list[str]]:
            return [["--rate", "0.1"]]

        GpuPodOperator.partial(task_id="sweep", image="busybox").expand(arguments=rates())
    assert upstream(dag, "train-gpu.scale_down") == {"sweep", *SETUPS}
    assert upstream(dag, "rates") == {"train-gpu.device_plugin"}
    given = dag.get_task("sweep").partial_kwargs
    assert (given["gpu_pool"], given["block_id"]) == (POOL, "train-gpu")


def test_pods_take_the_pool_of_the_innermost_block(dag: DAG) -> None:
    other = EksGpuPool(**_other())
    with dag:
        with gpu_nodes(POOL):
            outer = pod("outer")
            with gpu_nodes(other):
                inner = pod("inner")
            explicit = pod("explicit", gpu_pool=other)
        assert current_pool() is None
        outside = pod("outside", gpu_pool=POOL)
    assert (outer.gpu_pool, inner.gpu_pool, explicit.gpu_pool) == (POOL, other, other)
    assert (outer.block_id, inner.block_id) == ("train-gpu", "other")
    assert (explicit.block_id, outside.block_id) == ("", "")


def test_pod_belongs_to_the_innermost_block_of_its_pool(dag: DAG) -> None:
    with dag, gpu_nodes(POOL), gpu_nodes(EksGpuPool(**_other())):
        train = pod("train", gpu_pool=POOL)
        sweep = GpuPodOperator.partial(task_id="sweep", image="busybox", gpu_pool=POOL).expand(arguments=[["1"]])
        pod("evaluate")
    assert train.block_id == sweep.partial_kwargs["block_id"] == "train-gpu"


def test_two_blocks_of_one_pool_want_nodes_each_for_itself(dag: DAG) -> None:
    with dag:
        with gpu_nodes(POOL, group_id="first") as first:
            pod("train")
        with gpu_nodes(POOL, group_id="second") as second:
            pod("evaluate")
        first >> second
    for block, task_id in (("first", "train"), ("second", "evaluate")):
        owned = [dag.get_task(name) for name in (f"{block}.ensure", task_id, f"{block}.scale_down")]
        assert [task.block_id for task in owned] == [block] * 3
    assert upstream(dag, "second.begin") == {"train"}


def test_two_blocks_of_one_name_are_refused(dag: DAG) -> None:
    with dag, gpu_nodes(POOL):
        pod("train")
    with pytest.raises(PoolSpecError, match="group_id"), dag, gpu_nodes(POOL):
        pod("evaluate")


def test_blocks_in_task_groups_take_the_groups_names(dag: DAG) -> None:
    with dag:
        for name in ("en", "de"):
            with TaskGroup(name), gpu_nodes(POOL):
                pod("train")
    assert {"en.train", "de.train", "en.train-gpu.scale_down", "de.train-gpu.scale_down"} <= dag.task_dict.keys()
    assert dag.get_task("en.train").block_id == dag.get_task("en.train-gpu.ensure").block_id == "en.train-gpu"
    assert upstream(dag, "de.train-gpu.scale_down") == {"de.train", "de.train-gpu.begin", "de.train-gpu.ensure"}


def test_task_groups_and_blocks_in_a_block_take_the_names_of_the_groups_around_it(dag: DAG) -> None:
    with dag:
        for name in ("en", "de"):
            with TaskGroup(name), gpu_nodes(POOL), TaskGroup("sweep"), gpu_nodes(EksGpuPool(**_other())):
                pod("train")
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    for name in ("en", "de"):
        assert dag.get_task(f"{name}.sweep.train").block_id == f"{name}.sweep.other"
        assert {f"{name}.sweep", f"{name}.sweep.other", f"{name}.train-gpu"} <= stored.task_group_dict.keys()
        assert stored.task_group_dict[f"{name}.sweep"].label == "sweep"


def test_block_in_a_mapped_task_group_is_one_for_each_index(dag: DAG) -> None:
    @task_group
    def city(name: str) -> None:
        with gpu_nodes(POOL):
            pod("train", arguments=[name])

    with dag:
        city.expand(name=["oslo", "rome"])
    for task_id in ("city.train-gpu.ensure", "city.train", "city.train-gpu.scale_down"):
        task = dag.get_task(task_id)
        assert "block_id" in task.template_fields
        assert task.render_template(task.block_id, {"ti": SimpleNamespace(map_index=1)}) == "city.train-gpu[1]"


def test_clearing_a_task_clears_what_brings_its_nodes_and_takes_them(dag: DAG) -> None:
    with dag:
        with gpu_nodes(POOL, group_id="first"):
            pod("train") >> pod("evaluate")
        with gpu_nodes(POOL, group_id="second"):
            pod("other")
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    cleared = stored.partial_subset(["train"], include_downstream=True, include_upstream=False).task_dict
    assert set(cleared) == {
        *("first.begin", "first.ensure", "train", "evaluate"),
        *("first.scale_down", "first.witness", "first.done"),
    }


def _other() -> dict[str, Any]:
    return {
        "name": "other",
        "cluster_name": "k8s-ml",
        "region": "us-west-2",
        "instance_types": ["g5.xlarge"],
        "max_nodes": 1,
    }


def test_an_empty_block_is_refused(dag: DAG) -> None:
    with pytest.raises(PoolSpecError, match="holds no task"), dag, gpu_nodes(POOL):
        pass
    assert current_pool() is None


@pytest.mark.parametrize("name", ["soft_fail", "never_fail", "silent_fail"])
def test_a_leak_cannot_be_hidden(dag: DAG, name: str) -> None:
    with pytest.raises(PoolSpecError, match=name), dag:
        ScaleDownSensor(task_id="zero", gpu_pool=POOL, **{name: True})


def test_scale_down_has_sane_defaults(dag: DAG) -> None:
    with dag:
        zero = ScaleDownSensor(task_id="zero", gpu_pool=POOL)
    assert (zero.retries, zero.poke_interval, zero.release_timeout) == (3, 5, timedelta(minutes=30))


@pytest.mark.parametrize("wanted", [{"gpus": 3}, {"nodes": 3}, {"gpus": 1, "nodes": 1}, {"wait_for": "drivers"}])
def test_ensure_refuses_at_parse_time_what_the_pool_cannot_have(dag: DAG, wanted: dict[str, Any]) -> None:
    with pytest.raises(PoolSpecError), dag:
        EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL, **wanted)


def test_a_spec_with_a_task_s_output_in_it_is_refused(dag: DAG) -> None:
    with dag:

        @task
        def region() -> str:
            return "us-west-2"

        with pytest.raises(PoolSpecError, match="XComArg"):
            EksGpuPool(**{**_other(), "region": region()})


@pytest.mark.parametrize(
    "cls",
    [EnsureGpuPoolOperator, InstallDevicePluginOperator, ScaleDownSensor, GpuPodOperator, BlockVerdictOperator],
    ids=lambda c: c.__name__,
)
def test_no_argument_or_attribute_bears_a_name_of_airflow_s(cls: type[BaseOperator]) -> None:
    base = next(c for c in cls.__mro__[1:] if not c.__module__.startswith("airflow_gpu_provider"))
    taken = set(inspect.signature(BaseOperator.__init__).parameters) | set(dir(BaseOperator))
    inherited = set(inspect.signature(base.__init__).parameters)
    # `dry_run` is what every tool calls a plan without changes; it is never an attribute of ours.
    arguments = set(inspect.signature(cls.__init__).parameters) - {"self", "kwargs", "dry_run"} - inherited
    # Airflow's own, with another default or a check; operators/test_airflow_arguments.py holds their meaning.
    airflow_s = {"retries", "retry_delay", "retry_policy", "execution_timeout", "weight_rule", "depends_on_past"}
    airflow_s |= {"wait_for_downstream"}
    assert not (arguments - airflow_s) & taken
    overridden = {
        "execute",
        "poke",
        "on_kill",
        "resume_execution",
        "template_fields",
        "ui_color",
        "operator_extra_links",
    }
    attributes = {name for name in vars(cls) if not name.startswith("_")} - overridden - set(dir(base))
    assert not attributes & taken
