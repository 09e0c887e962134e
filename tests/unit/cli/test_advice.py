"""`airflow gpu advise`: what the nights of a DAG say, reckoned by hand."""

from __future__ import annotations

import json
import math
import random
from argparse import Namespace
from datetime import UTC, datetime, time, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cli import commands
from airflow_gpu_provider.cli.metadata import NamedPool
from airflow_gpu_provider.cli.nights import LeftXCom, blocks_of
from airflow_gpu_provider.errors import CredentialsError, PoolSpecError
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.reports.advice import advise, expected_hours
from airflow_gpu_provider.reports.night_history import Night, NightHistory, run_of
from tests.unit.scaling.pools import NOW, pool

START = datetime(2026, 3, 1, 20, tzinfo=UTC)
SPOT = "train-a-g6-xlarge-spot"


def night(number: int, **fields: Any) -> Night:
    """Night `number` waits as many minutes, and works an hour."""
    usual = {"wait": 60 * number, "pull": 30, "ran": 3600, "cost": 2.0, "state": "success"}
    return Night(run=run_of(f"run-{number}"), at=START + timedelta(days=number), **{**usual, **fields})


def bill(number: int, *, hours: float = 2.0, total: Any = 2.0, **fields: Any) -> dict[str, Any]:
    began = START + timedelta(days=number)
    lane = {
        "machine": f"i-{number}",
        "group": SPOT,
        "market": "SPOT",
        "instance_type": "g6.xlarge",
        "launched_at": began.isoformat(),
        "usable_at": (began + timedelta(minutes=number)).isoformat(),
        "gone_at": (began + timedelta(hours=hours)).isoformat(),
        "worked": [],
    }
    usual = {"pool": "train", "block": "train", "node_seconds": {}, "cost": {"total": total}, "currency": "USD"}
    return {**usual, "at_least": None, "timeline": [lane], **fields}


def xcom(number: int, key: str, value: Any, task: str = "scale_down", later: float = 0) -> LeftXCom:
    at = START + timedelta(days=number, hours=3 + later)
    return LeftXCom(run_id=f"run-{number}", task_id=task, key=key, at=at, value=value)


def nights(*found: Night) -> list[list[object]]:
    return NightHistory(nights=found).to_json()


LOST = {3: {SPOT: 2}, 7: {SPOT: 1}}
TEN = [night(n, losses=LOST.get(n, {}), state="failed" if n == 7 else "success") for n in range(1, 11)]
LEFT = [
    *(xcom(n, "usage", bill(n, at_least="x" if n == 1 else None)) for n in range(1, 11)),
    xcom(10, "history", nights(*TEN)),
    *(xcom(n, "utilization", {"computed_fraction": 0.38}, "train") for n in range(1, 3)),
]


def lines(left: list[LeftXCom], **fields: Any) -> dict[str, list[str]]:
    (block,) = blocks_of(left, 30)
    found: dict[str, list[str]] = {}
    for each in advise(block, done_by=time(7), **fields):
        found.setdefault(each.about, []).append(each.text)
    return found


def test_ten_nights_by_hand() -> None:
    work = math.expm1(0.15) / 0.15  # three losses in twenty node hours, work of an hour
    assert lines(LEFT) == {
        "nights": ["10 nights: 9 succeeded, 1 failed"],
        "wait for nodes": ["p50 5.0 min, p90 9.0 min"],
        "image pull": ["p50 0.5 min, p90 0.5 min"],
        "work": ["p50 1.0 h, p90 1.0 h"],
        "done by 07:00": ["start at 05:51 to be done by 07:00 in nine of ten nights"],
        "losses": [f"3 of {SPOT} in 20.0 node hours, 0.15 an hour"],
        "spot": [
            f"without a checkpoint: {work:.1f} times the hours, at 0.15 losses an hour",
            "with checkpoints: 1.0 times the hours, at 0.15 losses an hour",
        ],
        "cost": ["at least 2.22 USD for each of 9 finished runs on g6.xlarge"],
        "GPUs": ["computed 38 % of the time; try a machine one size smaller"],
    }


def test_fewer_than_five_nights_conclude_nothing() -> None:
    few = [xcom(n, "usage", bill(n)) for n in range(1, 5)]
    assert lines(few) == {"nights": ["4 nights are known; nothing is concluded from fewer than 5"]}


def test_the_last_bill_of_a_cleared_run_counts_and_so_does_its_record() -> None:
    cleared = [
        xcom(2, "usage", bill(2, total=7.0), later=200),
        xcom(2, "history", nights(TEN[0], night(2, state="failed")), later=200),
    ]
    found = lines([*LEFT, *cleared])
    assert found["nights"] == ["10 nights: 8 succeeded, 2 failed"]
    assert found["cost"] == ["at least 3.12 USD for each of 8 finished runs on g6.xlarge"]


def test_nights_before_the_record_are_known_by_their_bills() -> None:
    found = lines([xcom(n, "usage", bill(n, total="unknown")) for n in range(1, 8)])
    assert found["nights"] == ["7 nights: 7 with an end that is not known"]
    assert found["wait for nodes"] == ["p50 4.0 min, p90 7.0 min"]
    assert "cost" not in found


def test_what_is_no_bill_and_other_blocks_are_told_apart() -> None:
    odd = [xcom(1, "usage", "none", "other"), xcom(1, "usage", {"a": 1}, "other"), xcom(1, "history", 5, "other")]
    second = [xcom(n, "usage", bill(n, block="eval"), "eval") for n in range(1, 7)]
    blocks = blocks_of([*odd, *LEFT, *second], 5)
    assert [(each.block, len(each.nights)) for each in blocks] == [("eval", 5), ("train", 5)]
    assert blocks[0].computed == ()


@given(st.floats(0.1, 20), st.floats(0, 1))
def test_checkpoints_never_cost_more_than_none_beyond_their_restarts(work: float, rate: float) -> None:
    without, with_them = (expected_hours(work, rate, has_checkpoint=way) for way in (False, True))
    assert min(without, with_them) >= work * (1 - 1e-9)
    assert with_them <= work * 1.3


def test_the_formula_is_what_chance_gives() -> None:
    chance = random.Random(7)

    def one(work: float, rate: float) -> float:
        spent = 0.0
        while (lost := chance.expovariate(rate)) < work:
            spent += lost
        return spent + work

    mean = sum(one(3, 0.3) for _ in range(20_000)) / 20_000
    assert mean == pytest.approx(expected_hours(3, 0.3, has_checkpoint=False), rel=0.03)


def args(**fields: Any) -> Namespace:
    return Namespace(
        **{"dag_id": "nightly", "nights": 30, "done_by": "07:00", "output": "json", "verbose": True, **fields}
    )


def advised(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], platform: Any) -> dict[str, list[str]]:
    spec = pool(price_per_hour="list")
    named = NamedPool(name="train", spec=spec.serialize(), pool=spec)
    monkeypatch.setattr(commands, "pools_of_dags", lambda dag_id: [named])
    monkeypatch.setattr(commands, "has_checkpoint", lambda dag_id: True)
    monkeypatch.setattr(commands, "xcoms_of", lambda dag_id, since: LEFT)
    monkeypatch.setattr(commands, "_open", lambda pool: SimpleNamespace(platform=platform))
    commands.advise(args())
    found: dict[str, list[str]] = {}
    for row in json.loads(capsys.readouterr().out):
        found.setdefault(row["about"], []).append(row["advice"])
    return found


def test_the_command_compares_the_spec_s_other_candidates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = ListPrices(at=NOW, per_hour={SPOT: 0.3, "train-a-g6-xlarge": 0.9})
    found = advised(monkeypatch, capsys, SimpleNamespace(list_prices=lambda: listed))
    assert found["other machines"] == [
        f"6.00 USD for these 20.0 node hours on {SPOT}, at today's price; its speed is another",
        "18.00 USD for these 20.0 node hours on train-a-g6-xlarge, at today's price; its speed is another",
    ]
    assert len(found["spot"]) == 1


def test_without_the_cloud_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise CredentialsError("The connection has no credentials.", "Add them.")

    found = advised(monkeypatch, capsys, SimpleNamespace(list_prices=refused))
    assert found["other machines"] == ["not compared: The connection has no credentials"]
    assert found["nights"]


@pytest.mark.parametrize("wrong", [{"nights": 0}, {"done_by": "seven"}])
def test_a_wrong_argument_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match=PoolSpecError.__name__):
        commands.advise(args(**wrong))
