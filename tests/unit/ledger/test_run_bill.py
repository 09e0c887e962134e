"""What the task's log says a run cost: whole, or at least."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from airflow.providers.common.compat.sdk import Stats

from airflow_gpu_provider.ledger.run_bill import log_bill, measure
from airflow_gpu_provider.money.bill import Bill
from tests.unit.scaling.pools import key

LOG = logging.getLogger("bill")


def bill(at_least: str = "") -> Bill:
    seconds = {"booting": 480.0, "working": 20160.0, "idle": 660.0}
    return Bill(
        seconds=seconds,
        cost={"booting": 0.1, "working": 4.5, "idle": 0.15},
        currency="USD",
        machines=2,
        at_least=at_least,
    )


def test_a_whole_bill(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_bill(LOG, key("a"), bill())
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert " used 5.9 h of node time on 2 nodes: 480 s booting (0.1000 USD), " in record.getMessage()
    assert record.getMessage().endswith("; cost in all: 4.75 USD.")
    assert (bill().to_json()["at_least"], bill().to_json()["currency"]) == (None, "USD")


def test_what_was_spent_beyond_the_limit_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log_bill(LOG, key("a"), replace(bill(), over_max_cost=1.25))
    record = caplog.records[-1]
    assert (record.levelname, "cost 1.25 USD more than its max_cost" in record.getMessage()) == ("WARNING", True)


def test_the_gauges_of_money_name_its_currency(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(Stats, "gauge", lambda name, _, tags: sent.update({name: tags}))
    measure(key("a"), bill())
    assert sent["gpu_provider.cost.working"] == {"pool": key("a").pool, "dag_id": key("a").dag_id, "currency": "USD"}
    assert "currency" not in sent["gpu_provider.node_seconds.working"]


def test_a_bill_that_may_be_more_says_why(caplog: pytest.LogCaptureFixture) -> None:
    why = "when machines were launched and terminated could not be read (AWS refused ec2:DescribeInstances.)"
    log_bill(LOG, key("a"), bill(why))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "used at least 5.9 h of node time" in record.getMessage()
    assert record.getMessage().endswith(f"The true numbers may be higher: {why}.")
    assert bill(why).to_json()["at_least"] == why


@pytest.mark.parametrize(("idle", "said"), [(3600.0, True), (600.0, False)])
def test_idle_time_is_a_warning_where_the_run_s_tasks_could_have_left_it_out(
    caplog: pytest.LogCaptureFixture, idle: float, said: bool
) -> None:
    """On each of two machines five minutes pass for drivers and images."""
    log_bill(LOG, key("a"), replace(bill(), idle_before_release=idle))
    assert ("idle while it still wanted the nodes (60 min)" in caplog.text) == said
