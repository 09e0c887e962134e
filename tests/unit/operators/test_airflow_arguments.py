"""Airflow's own arguments, each of them, on each operator of the package.

Given by keyword, by default_args of a DAG or of a task group, or by partial(), an argument is honoured as Airflow's own
operator honours it, refused when the DAG is parsed, or listed here as without meaning. One that an operator does not
have never changes it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.decorators.kubernetes import _KubernetesDecoratedOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, BaseOperator, BaseSensorOperator, TaskGroup, task
from airflow.sdk.bases.operator import OPERATOR_DEFAULTS
from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy

from airflow_gpu_provider import (
    DeleteGpuPoolOperator,
    EnsureGpuPoolOperator,
    ExtendGpuPoolOperator,
    GpuPodOperator,
    GpuPoolDoctorOperator,
    GpuPoolStatusOperator,
    InstallClusterAutoscalerOperator,
    InstallDevicePluginOperator,
    ReapGpuPoolsOperator,
    ScaleDownSensor,
    gpu_nodes,
)
from airflow_gpu_provider.decorators.gpu import GpuDecoratedOperator
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.block_verdict import BlockVerdictOperator
from airflow_gpu_provider.sensors.release_policy import RELEASE_RETRY_POLICY
from airflow_gpu_provider.tasks.pool_operator import DEFAULT_RETRY_POLICY, argument_defaults
from tests.unit.operators.test_drop_in import ARE_ATTRIBUTES, EKS, NEWEST, NOTHING_POLLS, SHAPES_THE_POD

DAY = datetime(2026, 3, 1, tzinfo=UTC)


def told(context: Any) -> None:
    """Stand in for a callback or a hook."""


class TheUsers(ExceptionRetryPolicy):
    """A retry policy that is told from others by its name."""


OF_BASE: dict[str, Any] = {
    "owner": "ml",
    "email": "ml@example.com",
    "email_on_retry": False,
    "email_on_failure": False,
    "retries": 7,
    "retry_delay": timedelta(seconds=77),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(hours=1),
    "retry_policy": TheUsers(rules=[]),
    "start_date": DAY,
    "end_date": DAY + timedelta(days=90),
    "depends_on_past": True,
    "ignore_first_depends_on_past": True,
    "wait_for_past_depends_before_skipping": True,
    "wait_for_downstream": True,
    "priority_weight": 9,
    "weight_rule": "absolute",
    "queue": "kubernetes",
    "pool": "one-slot",
    "pool_slots": 2,
    "sla": timedelta(hours=1),
    "execution_timeout": timedelta(hours=3),
    "on_execute_callback": told,
    "on_failure_callback": told,
    "on_success_callback": told,
    "on_retry_callback": told,
    "on_skipped_callback": told,
    "pre_execute": told,
    "post_execute": told,
    "trigger_rule": "none_failed",
    "resources": {"cpus": 2},
    "run_as_user": "airflow",
    "map_index_template": "{{ ti.map_index }}",
    "max_active_tis_per_dag": 1,
    "max_active_tis_per_dagrun": 1,
    "executor": "LocalExecutor",
    "executor_config": {"KubernetesExecutor": {}},
    "do_xcom_push": False,
    "multiple_outputs": True,
    "inlets": [Asset("data")],
    "outlets": [Asset("model")],
    "doc": "d",
    "doc_md": "d",
    "doc_json": "d",
    "doc_yaml": "d",
    "doc_rst": "d",
    "task_display_name": "Training",
    "logger_name": "ml",
    "allow_nested_operators": False,
    "render_template_as_native_obj": True,
}

MADE_WITH = {"self", "kwargs", "task_id", "dag", "task_group", "params", "default_args"}
"""What a task is made with: Airflow treats them before any operator sees them."""

OF_SENSORS: dict[str, Any] = {
    "poke_interval": 77,
    "timeout": 3600,
    "soft_fail": True,
    "mode": "reschedule",
    "exponential_backoff": True,
    "max_wait": 99,
    "silent_fail": True,
    "never_fail": True,
}

OF_PODS: dict[str, Any] = {
    **{name: value for name, value in {**SHAPES_THE_POD, **ARE_ATTRIBUTES}.items() if name in NEWEST},
    **dict.fromkeys(NOTHING_POLLS, 7),
    "pod_template_file": __file__,
    "kubernetes_conn_id": "prod",
    "in_cluster": True,
    "cluster_context": "prod",
    "config_file": "/kubeconfig",
    "is_delete_operator_pod": False,
}


def test_every_argument_is_in_a_table() -> None:
    for operator, table in (
        (BaseOperator, OF_BASE),
        (BaseSensorOperator, OF_SENSORS),
        (KubernetesPodOperator, OF_PODS),
    ):
        unknown = set(inspect.signature(operator.__init__).parameters) - set(table) - MADE_WITH
        assert not unknown, f"{operator.__name__} has arguments that nobody has thought about: {unknown}"


class PlainSensor(BaseSensorOperator):
    """A sensor as Airflow means them."""

    def poke(self, context: Any) -> bool:
        return True


def function(rate: float = 0.1) -> None: ...


@dataclass(frozen=True)
class Row:
    """An operator of the package, Airflow's own one that it is compared with, and how they are made."""

    operator: type[BaseOperator]
    like: type[BaseOperator]
    arguments: Mapping[str, Any]
    expanded: str = "gpu_pool"

    def made(self, **kwargs: Any) -> BaseOperator:
        return self.operator(task_id="t", **{**self.arguments, **kwargs})

    def mapped(self, **kwargs: Any) -> Any:
        if self.operator is GpuDecoratedOperator:
            given = {
                name: value for name, value in self.arguments.items() if name not in ("python_callable", "op_args")
            }
            return task.gpu(**{**given, **kwargs})(function).expand(rate=[0.1]).operator
        given = {name: value for name, value in {**self.arguments, **kwargs}.items() if name != self.expanded}
        return self.operator.partial(task_id="t", **given).expand(**{self.expanded: [self.arguments[self.expanded]]})

    def unmapped(self, mapped: Any) -> BaseOperator:
        own = self.operator is GpuDecoratedOperator
        resolved = {"op_kwargs": {"rate": 0.1}} if own else {self.expanded: self.arguments[self.expanded]}
        return mapped.unmap(resolved)  # type: ignore[no-any-return]


POOLS = {"gpu_pools": [EKS]}
FUNCTION = {"python_callable": function, "op_args": [], "op_kwargs": {"rate": 0.1}}
ROWS = [
    Row(EnsureGpuPoolOperator, EmptyOperator, {"gpu_pool": EKS}),
    Row(InstallDevicePluginOperator, EmptyOperator, {"gpu_pool": EKS}),
    Row(InstallClusterAutoscalerOperator, EmptyOperator, {"gpu_pool": EKS}),
    Row(GpuPodOperator, KubernetesPodOperator, {"gpu_pool": EKS, "gpus": 1}, expanded="gpus"),
    Row(GpuDecoratedOperator, _KubernetesDecoratedOperator, {"gpu_pool": EKS, **FUNCTION}),
    Row(ScaleDownSensor, PlainSensor, {"gpu_pool": EKS}),
    Row(DeleteGpuPoolOperator, EmptyOperator, {"gpu_pool": EKS}),
    Row(ReapGpuPoolsOperator, EmptyOperator, POOLS, expanded="gpu_pools"),
    Row(GpuPoolStatusOperator, EmptyOperator, POOLS, expanded="gpu_pools"),
    Row(
        ExtendGpuPoolOperator,
        EmptyOperator,
        {**POOLS, "dag_id_of_run": "n", "run_id": "r", "hours": 1},
        expanded="hours",
    ),
    Row(GpuPoolDoctorOperator, EmptyOperator, POOLS, expanded="gpu_pools"),
    Row(
        BlockVerdictOperator,
        EmptyOperator,
        {"block_tasks": ["a"], "deciding_tasks": ["a"], "scale_down": "s", "witness": "w"},
        expanded="block_tasks",
    ),
]
EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operator.__name__)

# -- the deliberate exceptions -------------------------------------------------------------------------------------

BY_KEYWORD_ONLY = {
    (InstallDevicePluginOperator, "image"): "in default_args, the training's",
    (InstallDevicePluginOperator, "namespace"): "in default_args, the training's",
    (InstallDevicePluginOperator, "container_resources"): "in default_args, the training's",
    (InstallClusterAutoscalerOperator, "image"): "in default_args, the training's",
}
"""Arguments of ours that bear the name of another operator's."""

REFUSED = {
    (ScaleDownSensor, "soft_fail"): "would hide GPUs",
    (ScaleDownSensor, "never_fail"): "would hide GPUs",
    (ScaleDownSensor, "silent_fail"): "would hide GPUs",
}
"""Wherever they come from."""

REFUSED_BY_KEYWORD = {
    (ScaleDownSensor, "depends_on_past"): "would leave GPUs running",
    (ScaleDownSensor, "wait_for_downstream"): "would leave GPUs running",
}
"""Refused where they are meant for this operator, and without meaning in default_args, which are for all."""

OF_OUR_OWN = {
    (ScaleDownSensor, "timeout"): ("release_timeout", timedelta(hours=1)),
}
"""Honoured in an attribute of another name."""

THE_DECORATOR_S = {
    (GpuDecoratedOperator, "cmds"),
    (GpuDecoratedOperator, "multiple_outputs"),
}
"""What Airflow's own @task.kubernetes sets by itself."""

WITHOUT_MEANING = {"sla", "is_delete_operator_pod"}
"""In Airflow 3 and its Kubernetes provider themselves."""

DIFFERENT_BY_DESIGN = {
    (GpuPodOperator, "startup_timeout_seconds"): {"schedule_timeout_seconds"},
    (GpuDecoratedOperator, "startup_timeout_seconds"): {"schedule_timeout_seconds"},
}
"""Attributes that KubernetesPodOperator derives from the argument, and that are told by themselves here."""

# -- how an argument is given, and what becomes of it --------------------------------------------------------------


def new_dag(**default_args: Any) -> DAG:
    return DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1), default_args=default_args)


def by_keyword(row: Row, name: str, value: Any) -> BaseOperator:
    with new_dag():
        return row.made(**{name: value})


def by_dag(row: Row, name: str, value: Any) -> BaseOperator:
    with new_dag(**{name: value}):
        return row.made()


def by_group(row: Row, name: str, value: Any) -> BaseOperator:
    with new_dag(), TaskGroup("group", prefix_group_id=False, default_args={name: value}):
        return row.made()


def by_partial(row: Row, name: str, value: Any) -> BaseOperator:
    with new_dag():
        return row.unmapped(row.mapped(**{name: value}))


def by_dag_of_mapped(row: Row, name: str, value: Any) -> BaseOperator:
    with new_dag(**{name: value}):
        return row.unmapped(row.mapped())


KEYWORDS: list[Callable[[Row, str, Any], BaseOperator]] = [by_keyword, by_partial]
DEFAULT_ARGS: list[Callable[[Row, str, Any], BaseOperator]] = [by_dag, by_group, by_dag_of_mapped]

WAYS = [*KEYWORDS, *DEFAULT_ARGS]

# What differs from one object to the next, or says where a task is and how it was made.
NOT_COMPARED = {"_dag", "dag", "task_group", "_keywords", "params", "_log", "_stop", "_cached_logger", "log"}


def state(operator: BaseOperator) -> dict[str, str]:
    attributes = {
        name: value
        for name, value in vars(operator).items()
        if name not in NOT_COMPARED and not name.startswith("_BaseOperator__")
    }
    return {name: re.sub(r"0x[0-9a-f]+", "0x", repr(value)) for name, value in attributes.items()}


def changes(of: Mapping[str, str], since: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in of.items() if since.get(name) != value}


def parameters(operator: type[BaseOperator]) -> set[str]:
    inits = [vars(level)["__init__"] for level in operator.__mro__ if "__init__" in vars(level) and level is not object]
    return {name for init in inits for name in inspect.signature(init).parameters}


def as_airflow_means_it(row: Row, name: str, value: Any) -> dict[str, str]:
    """Return the attributes that the argument changes on Airflow's own operator."""
    apart = {"task_id", *DIFFERENT_BY_DESIGN.get((row.operator, name), set())} - {name}
    meant = changes(_like(row.like, **{name: value}), _like(row.like))
    return {key: told for key, told in meant.items() if key not in apart}


def _like(operator: type[BaseOperator], **kwargs: Any) -> dict[str, str]:
    needed = FUNCTION if operator is _KubernetesDecoratedOperator else {}
    with new_dag():
        return state(operator(task_id="t", **needed, **kwargs))


def outcome(way: Callable[..., BaseOperator], row: Row, name: str, value: Any) -> dict[str, str] | str:
    """Return what has become of the operator, or why it was not made."""
    try:
        return state(way(row, name, value))
    except PoolSpecError as error:
        return f"refused: {error}"
    except TypeError:
        return "no such argument"


def of_airflow_s(row: Row, name: str, value: Any) -> Iterator[str]:
    """Yield what is wrong with an argument that Airflow's own operator has, too."""
    meant = as_airflow_means_it(row, name, value)
    if not meant and name not in WITHOUT_MEANING:  # it is Airflow's default, and not ours
        yield from of_ours(row, name, value)
    for way in WAYS:
        found = outcome(way, row, name, value)
        refused = REFUSED.get((row.operator, name)) or REFUSED_BY_KEYWORD.get((row.operator, name), "") * (
            way in KEYWORDS
        )
        if refused:
            if not (isinstance(found, str) and refused in found):
                yield f"{name}, {way.__name__}: not refused"
        elif isinstance(found, str):
            yield f"{name}, {way.__name__}: {found}"
        else:
            yield from (f"{name}, {way.__name__}: {each}" for each in _missing(row, name, way, found, meant))


def _missing(row: Row, name: str, way: Any, found: dict[str, str], meant: dict[str, str]) -> Iterator[str]:
    if (row.operator, name) in REFUSED_BY_KEYWORD:
        meant = plain(way, row)
    if (row.operator, name) in OF_OUR_OWN:
        attribute, expected = OF_OUR_OWN[row.operator, name]
        meant = {attribute: repr(expected)}
    for key, expected in meant.items():
        if found.get(key) != expected:
            yield f"{key} is {found.get(key)}, not {expected}"


def of_ours(row: Row, name: str, value: Any) -> Iterator[str]:
    """Yield what is wrong with an argument of our own that bears a name of Airflow's."""
    meant = changes(state(by_keyword(row, name, value)), plain(by_keyword, row))
    if not meant:
        yield f"{name}={value!r} changes nothing"
    for way in WAYS:
        found = outcome(way, row, name, value)
        taken = way in KEYWORDS or (row.operator, name) not in BY_KEYWORD_ONLY
        if isinstance(found, str) or changes(found, plain(way, row)) != (meant if taken else {}):
            yield f"{name}, {way.__name__}: {found if isinstance(found, str) else changes(found, plain(way, row))}"


def of_others(row: Row, name: str, value: Any) -> Iterator[str]:
    """Yield what is wrong with an argument that is not for this operator."""
    for way in WAYS:
        found = outcome(way, row, name, value)
        if way in KEYWORDS and found != "no such argument":
            yield f"{name}, {way.__name__}: taken"
        if way in DEFAULT_ARGS and (isinstance(found, str) or changes(found, plain(way, row))):
            yield f"{name}, {way.__name__}: {found if isinstance(found, str) else changes(found, plain(way, row))}"


def plain(way: Callable[..., BaseOperator], row: Row) -> dict[str, str]:
    """Return the operator's state where the argument is not given."""
    return _plain(ROWS.index(row), is_mapped=way in (by_partial, by_dag_of_mapped))


@cache
def _plain(number: int, *, is_mapped: bool) -> dict[str, str]:
    row = ROWS[number]
    with new_dag():
        return state(row.unmapped(row.mapped()) if is_mapped else row.made())


@pytest.mark.parametrize("table", [OF_BASE, OF_SENSORS, OF_PODS], ids=["BaseOperator", "sensors", "pods"])
@EACH_ROW
@pytest.mark.filterwarnings("ignore")
def test_an_argument_is_honoured_or_refused_or_leaves_the_operator_alone(row: Row, table: dict[str, Any]) -> None:
    like, own = parameters(row.like), parameters(row.operator)
    wrong = []
    for name, value in table.items():
        judge = of_airflow_s if name in like else of_ours if name in own else of_others
        if name == "do_xcom_push":  # on by default, but not for a pod
            value = issubclass(row.operator, KubernetesPodOperator)
        if (row.operator, name) not in THE_DECORATOR_S:
            wrong += judge(row, name, value)
    assert not wrong, "\n".join(wrong)


@EACH_ROW
@pytest.mark.filterwarnings("ignore")
def test_the_scheduler_is_told_the_same_of_a_mapped_task(row: Row) -> None:
    wrong = []
    for name, value in OF_BASE.items():
        if not hasattr(type(_mapped(row, {}, {})), name) or (row.operator, name) in REFUSED_BY_KEYWORD:
            continue
        if (row.operator, name) in THE_DECORATOR_S or name == "resources":  # these, it is not told of
            continue
        expected = _one(getattr(by_keyword(row, name, value), name))
        found = [_one(getattr(_mapped(row, *given), name)) for given in (({name: value}, {}), ({}, {name: value}))]
        wrong += [f"{name}: {each!r}, not {expected!r}" for each in found if each != expected]
    assert not wrong, "\n".join(wrong)


def _mapped(row: Row, given: dict[str, Any], default_args: dict[str, Any]) -> Any:
    with new_dag(**default_args):
        return row.mapped(**given)


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


@pytest.mark.parametrize("airflow", ["3.3.0", "3.3.2"])
@EACH_ROW
def test_defaults_of_our_own_hold_in_partial_too(row: Row, airflow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if airflow == "3.3.0":  # which knows BaseOperator's defaults only
        defaults = "airflow.sdk.bases.operator._get_operator_defaults"
        monkeypatch.setattr(defaults, lambda operator: OPERATOR_DEFAULTS, raising=False)
    with new_dag():
        task = row.made()
    with new_dag():
        mapped = row.mapped()
    policy = RELEASE_RETRY_POLICY if row.operator is ScaleDownSensor else DEFAULT_RETRY_POLICY
    assert row.unmapped(mapped).retry_policy is task.retry_policy is policy
    assert (mapped.retries, mapped.retry_delay) == (task.retries, task.retry_delay)
    assert row.unmapped(mapped).retries == task.retries
    assert (mapped.inlets, mapped.outlets) == (task.inlets, task.outlets) == ([], []), "a worker goes through them"
    with new_dag(retries=0, retry_policy=None):
        mapped = row.mapped()
    assert (mapped.retries, row.unmapped(mapped).retries, mapped.retry_policy) == (0, 0, None)


@pytest.mark.parametrize("value", [1800, 1800.0, timedelta(minutes=30)], ids=repr)
@pytest.mark.parametrize(
    "row", [row for row in ROWS if "timeout" in parameters(row.operator)], ids=lambda row: row.operator.__name__
)
def test_a_timeout_is_seconds_or_a_timedelta(row: Row, value: Any) -> None:
    for way in WAYS:
        operator: Any = way(row, "timeout", value)
        wait = operator.release_timeout if isinstance(operator, ScaleDownSensor) else operator.wait_timeout
        assert wait == timedelta(minutes=30)
    with pytest.raises(PoolSpecError, match=r"Task t( of DAG nightly)?: timeout='1h'\. .* a number of seconds"):
        by_keyword(row, "timeout", "1h")


@pytest.mark.parametrize("value", [None, "train-gpu", {"name": "train-gpu"}, 5], ids=repr)
@pytest.mark.parametrize(
    "row", [row for row in ROWS if "gpu_pool" in parameters(row.operator)], ids=lambda row: row.operator.__name__
)
def test_what_is_no_gpu_pool_is_refused_and_its_task_named(row: Row, value: Any) -> None:
    if value is not None or "gpu_pool" not in argument_defaults(row.operator):
        with pytest.raises(PoolSpecError, match=r"Task t of DAG nightly: gpu_pool=.*\. Give the pool itself"):
            by_keyword(row, "gpu_pool", value)
    if value is not None and row.operator is not GpuDecoratedOperator:
        with DAG("nightly", schedule=None), pytest.raises(PoolSpecError, match="Task t of DAG nightly: gpu_pool="):
            row.operator.partial(task_id="t", gpu_pool=value)
    later: Any = by_keyword(row, "gpu_pool", "{{ params.pool }}")
    assert later.gpu_pool == "{{ params.pool }}"


@EACH_ROW
def test_a_gpu_pool_as_slot_pool_is_refused_with_the_name_that_is_meant(row: Row) -> None:
    for way in WAYS:
        by_decorator = row.operator is GpuDecoratedOperator and way is by_partial  # Airflow does it
        with pytest.raises(
            TypeError if by_decorator else PoolSpecError, match="EksGpuPool" if by_decorator else "gpu_pool="
        ):
            way(row, "pool", EKS)


# -- the block's own tasks -----------------------------------------------------------------------------------------

BY_ALL = {
    *("owner", "email", "email_on_retry", "email_on_failure", "on_execute_callback", "on_failure_callback"),
    *("on_success_callback", "on_retry_callback", "on_skipped_callback", "queue", "executor", "executor_config"),
    *("run_as_user", "resources", "priority_weight", "start_date", "end_date", "sla", "do_xcom_push"),
    *("map_index_template", "logger_name", "doc", "doc_md", "doc_json", "doc_yaml", "doc_rst"),
}
BY_SETUPS = {
    *("retries", "retry_delay", "retry_exponential_backoff", "max_retry_delay", "retry_policy", "execution_timeout"),
    *("pool", "pool_slots", "weight_rule", "max_active_tis_per_dag", "max_active_tis_per_dagrun"),
    *("pre_execute", "post_execute"),
}
BY_BEGIN = {"trigger_rule", "wait_for_past_depends_before_skipping", "depends_on_past", "wait_for_downstream"}
BY_NONE = {
    "ignore_first_depends_on_past": "begin has it where it waits for the run before",
    "multiple_outputs": "what they return is one value",
    "inlets": "they read no asset",
    "outlets": "they make no asset, and a training that failed has made none either",
    "task_display_name": "all would have one name",
    "allow_nested_operators": "it is for operators that are executed within another one",
    "render_template_as_native_obj": "their templates give text",
}
OWN = ("begin", "ensure", "device_plugin", "scale_down", "witness", "done")


def test_every_argument_has_been_thought_about_for_the_block_s_own_tasks() -> None:
    tables = [BY_ALL, BY_SETUPS, BY_BEGIN, set(BY_NONE)]
    assert set(OF_BASE) == set().union(*tables)
    assert sum(map(len, tables)) == len(OF_BASE)


def block(*, of_group: dict[str, Any] | None = None, **default_args: Any) -> dict[str, dict[str, str]]:
    with (
        new_dag(**default_args) as dag,
        TaskGroup("night", prefix_group_id=False, default_args=of_group or {}),
        gpu_nodes(EKS),
    ):
        EmptyOperator(task_id="train")
    return {name: state(dag.get_task(f"e.{name}")) for name in OWN}


def taken_by(name: str) -> tuple[str, ...]:
    if name in BY_ALL:
        return OWN
    if name in BY_SETUPS:
        return ("begin", "ensure", "device_plugin")
    return ("begin",) if name in BY_BEGIN else ()


@pytest.mark.parametrize("way", ["dag", "group"])
@pytest.mark.parametrize("table", [OF_BASE, OF_SENSORS, OF_PODS], ids=["BaseOperator", "sensors", "pods"])
@pytest.mark.filterwarnings("ignore")
def test_the_block_s_own_tasks_take_no_more_than_they_should(table: dict[str, Any], way: str) -> None:
    before = block()
    wrong = []
    for name, value in table.items():
        value = False if name == "do_xcom_push" else value
        after = block(of_group={name: value}) if way == "group" else block(**{name: value})
        changed = tuple(own for own in OWN if changes(after[own], before[own]))
        if changed != (taken_by(name) if name not in WITHOUT_MEANING else ()):
            wrong.append(f"{name}: taken by {changed}")
    assert not wrong, "\n".join(wrong)
