"""The rows that `airflow gpu` prints: money with its currency."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from airflow_gpu_provider.cli.tables import lease_rows, leftover_row, machine_rows, pool_row, print_rows, tell
from airflow_gpu_provider.money.budget import Budget
from airflow_gpu_provider.reports.status import pool_status
from airflow_gpu_provider.scaling.end.janitor import Leftover
from tests.unit.scaling.pools import NOW, lease, machine, node, pool, snapshot


@pytest.mark.parametrize(
    ("prices", "an_hour", "so_far"),
    [
        ({"price_per_hour": 0.8}, "0.80 USD", "0.80 USD"),
        ({"price_per_hour": {"ON_DEMAND": 120.0}, "currency": "JPY"}, "120.00 JPY", "120.00 JPY"),
        ({}, "unknown", "unknown"),
    ],
)
def test_money_has_a_currency(prices: dict[str, object], an_hour: str, so_far: str) -> None:
    status = pool_status(snapshot(machine(1), nodes=(node(1),), spec=pool(**prices)), "here")
    assert pool_row(status)["cost_per_hour"] == an_hour
    assert [row["cost_so_far"] for row in machine_rows([status])] == [so_far], "launched an hour ago"


def test_demand_has_what_is_left_of_its_money_and_why_it_has_more() -> None:
    budget = Budget(limit=10, spent=2, at=NOW, per_hour=3, raised="nearly there")
    demand = (lease("a", budget=budget), lease("b"), lease("c", budget=budget, extended="a larger data set"))
    rows = lease_rows([pool_status(snapshot(leases=demand, spec=pool(price_per_hour="list")), "here")])
    assert [(row["left"], row["extended"]) for row in rows] == [
        ("at least 8.00 USD (list price) of 10.00 USD", "nearly there"),
        ("", ""),
        ("", "a larger data set"),
    ]


def test_what_a_leftover_machine_has_cost_has_a_currency_and_what_costs_nothing_has_none() -> None:
    left = Leftover(pool="train", kind="machine", name="i-1", why="no run wants it", cost=1.5)
    assert leftover_row(left, "EUR")["cost_so_far"] == "1.50 EUR"
    assert leftover_row(Leftover(pool="train", kind="pod", name="p", why="over"), "EUR")["cost_so_far"] == ""


REASONS = {
    "late [/x] night": "late [/x] night",
    "see [link=https://elsewhere.example]the ticket[/link]": "see [link=https://elsewhere.example]the ticket[/link]",
    "[bold red]x :smiley: [1/5] epochs": "[bold red]x :smiley: [1/5] epochs",
    "esc \x1b]8;;https://elsewhere.example\x07click\x1b]8;;\x07 \x1b[2Jend": "esc click end",
    "\u202efdp.exe \x9b2J\x00\ud800": "fdp.exe \ufffd",
}


@pytest.mark.parametrize("output", ["table", "plain"])
@pytest.mark.parametrize(("reason", "shown"), REASONS.items())
def test_a_reason_is_shown_as_it_was_written(
    capsys: pytest.CaptureFixture[str], reason: str, shown: str, output: str
) -> None:
    print_rows([{"pool": "train-gpu", "extended": reason}, {"pool": "b", "extended": [reason, 5]}], output)
    printed = capsys.readouterr().out
    assert shown in printed
    assert f"{shown}, 5" in printed
    assert printed.replace("\n", "").isprintable()


@pytest.mark.parametrize(("output", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
@pytest.mark.parametrize("reason", REASONS)
def test_and_stays_the_same_as_data(
    capsys: pytest.CaptureFixture[str], reason: str, output: str, parse: Callable[[str], Any]
) -> None:
    print_rows([{"extended": reason}], output)
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert parse(printed) == [{"extended": reason}]


def test_lines_for_people_have_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    tell("pool a: [/x] \x1b[2Jgone\rforged\nits last line")
    assert capsys.readouterr().err == "pool a: [/x] gone\nforged\nits last line\n"
