"""What `airflow gpu` reads of Airflow's metadata database: the pools that DAGs name, which runs are over, and bills.

The DAGs are read as the scheduler reads them, serialized; no DAG file is parsed. The bills are what scale-downs have
left as XComs: kept as long as Airflow keeps its runs, while the cluster's own records last two days.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow.models.taskinstance  # noqa: F401 - an XCom's relations, by name
import yaml
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.xcom import XComModel
from airflow.sdk import BaseOperator
from airflow.sdk.execution_time.context import ConnectionAccessor, VariableAccessor
from airflow.utils.session import create_session
from airflow.utils.state import State
from jinja2 import StrictUndefined, UndefinedError
from sqlalchemy import select

from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool, pool_as_written
from airflow_gpu_provider.errors import GpuError, PoolSpecError
from airflow_gpu_provider.parse_errors import parsed, problem_of
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey

_DAGS_AT_ONCE = 50
_FIELDS = ("gpu_pool", "gpu_pools")
_BILL = "usage"
"""XCom key of a bill: docs/xcom.md."""


@dataclass(frozen=True, kw_only=True)
class NamedPool:
    """A pool and the DAGs that name it.

    Attributes:
        spec: As the DAG has it, Jinja expressions and all.
        pool: Rendered; None where it needs a DAG run to be rendered in, or cannot be read.
        error: Why there is no `pool`.
    """

    name: str
    spec: Mapping[str, Any]
    pool: GpuPool | None
    error: GpuError | None = None
    dags: list[str] = field(default_factory=list)

    @property
    def problem(self) -> str:
        """Why there is no `pool`, in words; empty where there is one."""
        return str(self.error) if self.error else ""


def pools_of_dags(dag_id: str | None = None) -> list[NamedPool]:
    """Return the pools of all DAGs that Airflow schedules, or of one, be it stale; each spec once."""
    found: dict[str, NamedPool] = {}
    for dag, spec in _specs(dag_id):
        known = found.setdefault(json.dumps(spec, sort_keys=True), named(spec))
        if dag not in known.dags:
            known.dags.append(dag)
    return sorted(found.values(), key=lambda each: (each.name, each.dags))


def pools_with_code(dag_id: str | None = None) -> set[str]:
    """Return the names of the pools on which a task of these DAGs has `code`, as far as known without a run."""
    found = set()
    for _, tasks in serialized_tasks(dag_id):
        for task in tasks:
            given = {**task, **task.get("partial_kwargs", {})}
            if given.get("code") is not None and isinstance(given.get("gpu_pool"), Mapping):
                found.add(named(given["gpu_pool"]).name)
    return found


def stale_dags() -> list[str]:
    """Return the DAGs whose files Airflow has not read lately: they are gone, or no DAG processor runs."""
    with create_session() as session:
        return list(session.scalars(select(DagModel.dag_id).where(DagModel.is_stale).order_by(DagModel.dag_id)))


def pools_of_file(path: str) -> list[NamedPool]:
    """Return the pools of a JSON or YAML file: one spec or a list of them."""
    try:
        data = parsed(yaml.safe_load, Path(path).read_text())
    except OSError as error:
        raise PoolSpecError(
            f"{path} cannot be read: {error.strerror}.", "Name a JSON or YAML file in --spec."
        ) from error
    except ValueError as error:
        what = f"{path} is neither JSON nor YAML: {problem_of(error)}."
        raise PoolSpecError(what, "Correct the file, or name another in --spec.") from None
    specs = data if isinstance(data, list) else [data]
    if not specs or not all(isinstance(spec, dict) for spec in specs):
        raise PoolSpecError(f"{path} holds no pool's spec.", "Write what GpuPool.serialize() returns, or a list of it.")
    return [named(spec, pool_as_written) for spec in specs]


def run_is_over_in_metadata(key: DemandKey) -> bool:
    """Return True if a DAG run of this installation is over: it has ended, or no longer exists."""
    with create_session() as session:
        query = select(DagRun.state).where(DagRun.dag_id == key.dag_id, DagRun.run_id == key.run_id)
        state = session.scalar(query)
    return state is None or state in State.finished_dr_states


def _specs(dag_id: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Return DAG ids, each with a spec that one of its tasks has.

    All are read before the first is rendered: to read a Variable, Airflow closes the thread's session.
    """
    return [(dag, spec) for dag, tasks in serialized_tasks(dag_id) for spec in _specs_of(tasks)]


def serialized_tasks(dag_id: str | None) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return the ids of all DAGs that Airflow schedules, or of one, each with its tasks' serialized fields."""
    found: list[tuple[str, list[Mapping[str, Any]]]] = []
    with create_session() as session:
        wanted = DagModel.is_stale.is_(False) if dag_id is None else DagModel.dag_id == dag_id
        ids = list(session.scalars(select(DagModel.dag_id).where(wanted).order_by(DagModel.dag_id)))
        for start in range(0, len(ids), _DAGS_AT_ONCE):
            some = ids[start : start + _DAGS_AT_ONCE]
            for row in SerializedDagModel.get_latest_serialized_dags(dag_ids=some, session=session):
                tasks = (row.data or {}).get("dag", {}).get("tasks", ())
                found.append((row.dag_id, [task.get("__var", task) for task in tasks]))
    return found


def _specs_of(tasks: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for fields in tasks:
        for name in _FIELDS:
            value = fields.get(name)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict) and "kind" in each:
                    yield each


def named(spec: Mapping[str, Any], build: Callable[[Mapping[str, Any]], GpuPool] = deserialize_pool) -> NamedPool:
    """Return a spec as a pool, rendered if that needs no DAG run; `build` makes the pool of it."""
    name, failure = str(spec.get("name", "")), None
    try:
        pool = _render(build(spec))
    except GpuError as error:
        failure = error
    except UndefinedError as error:
        failure = PoolSpecError(f"only a DAG run can render it: {error}")
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        failure = PoolSpecError(f"{type(error).__name__}: {error}")
    else:
        return NamedPool(name=pool.name, spec=spec, pool=pool)
    return NamedPool(name=name, spec=spec, pool=None, error=failure)


def _render(pool: GpuPool) -> GpuPool:
    """Render Variables and connections, which are the same for every run.

    Raises:
        jinja2.UndefinedError: The spec takes something of a DAG run: its date, its parameters.
    """
    if pool.is_rendered:
        return pool
    variables = {
        "json": VariableAccessor(deserialize_json=True),
        "value": VariableAccessor(deserialize_json=False),
    }
    operator = BaseOperator(task_id="gpu")
    environment = operator.get_template_env()
    environment.undefined = StrictUndefined
    task = SimpleNamespace(render_template=lambda what, context: operator.render_template(what, context, environment))
    return pool.resolve({"task": task, "var": variables, "conn": ConnectionAccessor()})


@dataclass(frozen=True, kw_only=True)
class RecordedBill:
    """The bill of one scale-down, as ScaleDownSensor left it, and when."""

    dag_id: str
    run_id: str
    at: datetime
    usage: Mapping[str, Any]


def recorded_bills(since: datetime, dag_id: str | None = None) -> list[RecordedBill]:
    """Return the bills since then, of one DAG or of all; what an XCom backend keeps elsewhere is left out."""
    wanted = [XComModel.key == _BILL, XComModel.timestamp >= since]
    wanted += [XComModel.dag_id == dag_id] if dag_id else []
    columns = (XComModel.dag_id, XComModel.run_id, XComModel.timestamp, XComModel.value)
    with create_session() as session:
        rows = session.execute(select(*columns).where(*wanted).order_by(XComModel.timestamp))
        bills = [(dag, run, at, _bill(value)) for dag, run, at, value in rows]
    return [RecordedBill(dag_id=dag, run_id=run, at=at, usage=usage) for dag, run, at, usage in bills if usage]


def _bill(value: Any) -> Mapping[str, Any] | None:
    """Return a bill; None for what is none: another operator may have an XCom of that name."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    is_bill = isinstance(value, Mapping) and isinstance(value.get("node_seconds"), Mapping)
    return value if is_bill else None
