"""What `airflow gpu doctor` makes of a pool that was looked at already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.clouds.base import LaunchFailure, Machine, Plan
from airflow_gpu_provider.errors import PriceLimitExceeded, ReferenceNotFound
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.reports.doctor import _Doctor
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from tests.unit.scaling.pools import dry, machine, pool, snapshot


def doctor(seen: PoolSnapshot, platform: Any) -> dict[str, Callable[[], Any]]:
    return _Doctor(SimpleNamespace(pool=seen.pool, platform=platform, snapshot=lambda: seen), "default").checks()  # type: ignore[arg-type]


KARPENTER = KubernetesGpuPool(
    name="train", provisioner="karpenter", node_selector_labels={"karpenter.sh/nodepool": "gpu"}, gpus_per_node=1
)


def provisioned(*failures: LaunchFailure, machines: tuple[Machine, ...] = ()) -> PoolSnapshot:
    seen = snapshot(nodes=())
    group = replace(seen.groups[0], provisioner="Karpenter", failures=failures, machines=machines)
    return replace(seen, pool=KARPENTER, groups=(group,))


def test_what_a_provisioner_asks_the_cloud_is_not_said_to_be_enough() -> None:
    assert "quota" not in doctor(provisioned(), None)
    autopilot = replace(KARPENTER, provisioner="autopilot")
    assert not {"quota", "stock"} & doctor(replace(provisioned(), pool=autopilot), None).keys()


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        ("out_of_stock", "Allow its NodePool more"),
        ("quota", "Ask the cloud for a higher quota."),
        ("refused", "Correct what this names"),
    ],
)
def test_launches_of_the_provisioner_that_failed_are_warned_of(kind: Any, fix: str) -> None:
    failed = [replace(dry(minutes), kind=kind, message="no machine for you") for minutes in (2, 1)]
    ((result, said, what_to_do),) = doctor(provisioned(*failed), None)["stock"]()
    assert (result, said) == ("warning", "Karpenter: 2 launches failed, last at 01:59Z: no machine for you")
    assert what_to_do.startswith(fix)
    assert [result for result, *_ in doctor(provisioned(), None)["stock"]()] == ["ok"]


def test_machines_that_do_not_join_are_warned_of() -> None:
    lacks = "NodeClaim gpu-x7k2p: NodeNotFound: Node not registered with cluster"
    slow = replace(machine(1, state="pending"), lacks=lacks)
    ((result, said, _),) = doctor(provisioned(machines=(slow,)), None)["stock"]()
    assert result == "warning"
    assert said.endswith(f"Karpenter: {lacks}")


def test_only_what_is_wrong_has_an_advice() -> None:
    found = Plan(pool="train", brought=("Karpenter (NodePool gpu) brings nodes",))
    healthy = doctor(provisioned(), SimpleNamespace(plan=lambda nodes: found))["groups"]()
    assert list(healthy) == [("ok", "Karpenter (NodePool gpu) brings nodes", "")]
    full = replace(found, notes=("NodePool gpu has no room in its limits",))
    _, (result, said, fix) = doctor(provisioned(), SimpleNamespace(plan=lambda nodes: full))["groups"]()
    assert (result, said) == ("warning", "NodePool gpu has no room in its limits")
    assert fix == "Change the spec, or the NodePool where it is defined."


@pytest.mark.parametrize(
    ("kind", "minutes_ago", "note", "results"),
    [
        ("quota", 60, "", ["ok"]),
        ("quota", 60, "not checked", ["warning"]),
        ("quota", 1, "", ["warning"]),
        ("out_of_stock", 60, "", ["warning"]),
    ],
    ids=["quota raised since", "quota not known", "still passed over", "no stock"],
)
def test_launches_over_a_quota_that_was_raised_are_no_warning(
    kind: Any, minutes_ago: float, note: str, results: list[str]
) -> None:
    def groups_over_quota(nodes: int, report: Any) -> frozenset[str]:
        if note:
            report(note)
        return frozenset()

    failed = replace(dry(minutes_ago), kind=kind)
    changed = {"failures": (failed,), "launch_failure": failed}
    seen = snapshot(train_a_g6_xlarge=changed)
    platform = SimpleNamespace(groups_over_quota=groups_over_quota)
    checks = doctor(seen, platform)
    quota = list(checks["quota"]())
    assert [result for result, *_ in quota] == ["unchecked" if note else "ok"]
    assert not any("Request a higher quota" in fix for *_, fix in quota)
    assert [result for result, *_ in checks["stock"]()] == results


def test_what_could_not_be_compared_is_told_by_the_doctor_and_no_line_of_a_plan() -> None:
    plan = Plan(pool="train", unread=("the image is not compared: ssm:GetParameter is not allowed",))
    assert plan.lines() == ["Plan for train: no changes."]
    platform = SimpleNamespace(plan=lambda nodes: plan)
    found = doctor(snapshot(), platform)["groups"]()
    assert ("unchecked", *plan.unread) in [(result, said) for result, said, _ in found]


def test_a_limit_that_every_candidate_exceeds_is_a_problem_of_the_prices() -> None:
    def plan(nodes: int) -> Plan:
        raise PriceLimitExceeded.of("train", ["g6.xlarge on-demand is not tried"])

    seen = snapshot(spec=pool(price_per_hour="list", max_price_per_hour=0.1))
    platform = SimpleNamespace(plan=plan, list_prices=lambda: None)
    checks = doctor(seen, platform)
    assert list(checks["groups"]()) == [("unchecked", "could not be checked: see prices", "")]
    with pytest.raises(PriceLimitExceeded):  # which `examine` tells as a problem of this check
        list(checks["prices"]())


@pytest.mark.parametrize(("took", "result"), [(9.94, "ok"), (10.1, "warning"), (21.0, "warning")])
def test_how_long_the_price_list_took_is_told_before_it_takes_too_long(took: float, result: str) -> None:
    listed = ListPrices(at=datetime.now(UTC), per_hour={"a": 0.5, "b": 2.0}, took=(took, 20.0))
    platform = SimpleNamespace(plan=lambda nodes: Plan(pool="train"), list_prices=lambda: listed)
    cost, duration = doctor(snapshot(spec=pool(price_per_hour="list")), platform)["prices"]()
    assert cost[:2] == (
        "ok",
        "nodes cost 0.5000 USD (list price) to 2.0000 USD (list price) an hour, disks and traffic aside",
    )
    assert duration[:2] == (
        result,
        f"the price list took {took:.1f} s to read; after 20 s prices are unknown, and no limit holds",
    )


def test_a_namespace_for_pods_that_is_not_there_would_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(api: Any, name: str, *, creates_pods: bool) -> None:
        raise ReferenceNotFound(f"there is no namespace {name}.", "Create it.")

    seen = snapshot()
    monkeypatch.setattr("airflow_gpu_provider.reports.doctor.missing", lambda *_: ())
    monkeypatch.setattr("airflow_gpu_provider.reports.doctor.check_namespace", missing)
    on: Any = SimpleNamespace(pool=seen.pool, platform=None, api=None, snapshot=lambda: seen)
    found = list(_Doctor(on, "ml").checks()["permissions"]())
    assert found == [("problem", "there is no namespace ml.", "Create it.")]
