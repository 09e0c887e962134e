"""What `airflow gpu advise` reads of Airflow's metadata database: a DAG's bills, records and utilization, by block."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import airflow.models.taskinstance  # noqa: F401 - an XCom's relations, by name
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_gpu_provider.cli.metadata import serialized_tasks
from airflow_gpu_provider.reports.advice import BlockNights
from airflow_gpu_provider.reports.night_history import HISTORY, Night, NightHistory, run_of

_KEYS = ("usage", HISTORY, "utilization")


@dataclass(frozen=True, kw_only=True)
class LeftXCom:
    """An XCom of a DAG's task, the value decoded."""

    run_id: str
    task_id: str
    key: str
    at: datetime
    value: Any


def xcoms_of(dag_id: str, since: datetime) -> list[LeftXCom]:
    """Return what the nights of a DAG have left since then, the oldest first."""
    columns = (XComModel.run_id, XComModel.task_id, XComModel.key, XComModel.timestamp, XComModel.value)
    wanted = (XComModel.dag_id == dag_id, XComModel.key.in_(_KEYS), XComModel.timestamp >= since)
    with create_session() as session:
        rows = session.execute(select(*columns).where(*wanted).order_by(XComModel.timestamp)).all()
    return [
        LeftXCom(run_id=run, task_id=task, key=key, at=at, value=_decoded(value)) for run, task, key, at, value in rows
    ]


def has_checkpoint(dag_id: str) -> bool | None:
    """Return whether the DAG's trainings save checkpoints; None where they differ, or there are none."""
    tasks = [task for _, found in serialized_tasks(dag_id) for task in found if task.get("gpu_role") == "training"]
    given = {bool(task.get("checkpoint")) for task in tasks}
    return given.pop() if len(given) == 1 else None


def blocks_of(found: Iterable[LeftXCom], most: int) -> list[BlockNights]:
    """Return the blocks of a DAG with their last nights, at most so many each. Pure.

    Of a run's scale-downs of one block the last counts; a run without a row in the record has what its bill shows.
    """
    found = list(found)
    bills: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    records: dict[str, dict[str, Night]] = {}
    tasks: dict[tuple[str, str], str] = {}
    for each in found:
        if each.key == HISTORY:
            # That of an earlier run which was cleared has no later night.
            records.setdefault(each.task_id, {}).update({n.run: n for n in NightHistory.parse(each.value).nights})
        elif each.key == "usage" and isinstance(each.value, Mapping) and "node_seconds" in each.value:
            block = (str(each.value.get("pool") or ""), str(each.value.get("block") or ""))
            bills.setdefault(block, {})[each.run_id] = each.value
            tasks[block] = each.task_id
    computed = [
        float(each.value["computed_fraction"])
        for each in found
        if each.key == "utilization" and isinstance(each.value, Mapping) and each.value.get("computed_fraction")
    ]
    return [
        BlockNights(
            pool=pool,
            block=block,
            nights=_nights(records.get(tasks[pool, block], {}), of_block)[-most:],
            bills=of_block,
            computed=computed if len(bills) == 1 else (),
            currency=next((str(bill["currency"]) for bill in of_block.values() if bill.get("currency")), ""),
        )
        for (pool, block), of_block in sorted(bills.items())
    ]


def _nights(known: Mapping[str, Night], bills: Mapping[str, Mapping[str, Any]]) -> list[Night]:
    by_bill = {run_of(run_id): Night.of(run_id, bill, ensured=None) for run_id, bill in bills.items()}
    nights = {name: night for name, night in by_bill.items() if night is not None} | dict(known)
    return sorted(nights.values(), key=lambda each: each.at)


def _decoded(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
