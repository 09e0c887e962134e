"""How much of a run's working time its GPUs computed: never more, and never less, than what was sampled says."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.ledger.run_bill import log_bill
from airflow_gpu_provider.ledger.usage import _run, _run_to_notes
from airflow_gpu_provider.money.bill import Bill, ComputedShare, computed_share
from airflow_gpu_provider.money.run_usage import Computed, RunUsage
from tests.unit.scaling.pools import NOW, key

LOG = logging.getLogger("bill")


def pod(start: int, end: int, share: float, *, gpus: int = 1, node: str = "a") -> Computed:
    span = NOW + timedelta(minutes=start), NOW + timedelta(minutes=end)
    return Computed(node=node, span=span, gpus=gpus, share=share)


def run(*worked: Computed, sampled: int) -> RunUsage:
    """A run of these pods, of which the first ones were sampled."""
    usage = RunUsage.new(key("r"))
    for each in worked:
        usage = usage.with_work(each.node, each.span)
    return replace(usage, computed={str(i): each for i, each in enumerate(worked[:sampled])})


def test_pods_count_by_their_gpus_and_their_time() -> None:
    half = run(pod(0, 60, 0.9, gpus=1), pod(60, 120, 0.1, gpus=3), sampled=2)
    assert computed_share(half) == ComputedShare(share=pytest.approx(0.3), known=1.0)


def test_samples_stand_for_no_more_than_their_own_time() -> None:
    ran = NOW, NOW + timedelta(minutes=60)
    few = Computed.of_samples("a", ran, 1, 0.5, sampled=timedelta(minutes=15))
    assert computed_share(replace(run(pod(0, 60, 0.0), sampled=0), computed={"u": few})) == ComputedShare(
        share=pytest.approx(0.5), known=0.25
    )
    assert Computed.of_samples("a", ran, 1, 0.5, sampled=timedelta(hours=2)).span == ran


def test_what_was_not_sampled_is_unknown_and_not_idle() -> None:
    found = computed_share(run(pod(0, 60, 0.8), pod(0, 180, 0.0, node="b"), sampled=1))
    assert found == ComputedShare(share=pytest.approx(0.8), known=0.25)
    assert found.in_words() == "of which the GPUs computed 80 %, as far as is known: for 25 % of it"
    assert computed_share(run(pod(0, 60, 0.8), sampled=0)) is None


PODS = st.builds(
    lambda start, long, share, gpus, node: pod(start, start + long, share, gpus=gpus, node=node),
    st.integers(0, 600),
    st.integers(0, 600),
    st.floats(0, 1),
    st.integers(1, 8),
    st.sampled_from("abc"),
)


@given(st.lists(PODS, max_size=8), st.integers(0, 8))
def test_both_are_shares_and_travel(pods: list[Computed], sampled: int) -> None:
    usage = run(*pods, sampled=sampled)
    assert _run(usage.key, _run_to_notes(usage)) == usage
    found = computed_share(usage)
    if found is None:
        assert all(each.span[0] == each.span[1] for each in usage.computed.values())
        return
    shares = [each.share for each in usage.computed.values() if each.span[0] < each.span[1]]
    assert min(shares) - 1e-9 <= found.share <= max(shares) + 1e-9
    assert 0 < found.known <= 1
    if sampled >= len(pods):
        assert found.known == 1


def test_the_log_says_it_after_working(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seconds = {"booting": 480.0, "working": 20160.0, "idle": 660.0}
    cost = {"booting": 0.1, "working": 4.5, "idle": 0.15}
    bill = Bill(seconds=seconds, cost=cost, currency="USD", machines=2, computed=ComputedShare(share=0.382, known=1.0))
    log_bill(LOG, key("a"), bill)
    assert "5.6 h working (4.50 USD), of which the GPUs computed 38 %, 11 min idle" in caplog.text
    assert bill.to_json()["computed"] == {"share": 0.382, "known": 1.0}
    assert replace(bill, computed=None).to_json()["computed"] is None
