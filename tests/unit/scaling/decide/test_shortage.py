"""Why pods that wait get no node: stock, a quota, or what an autoscaler says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.autoscaler_status import AutoscalerStatus
from airflow_gpu_provider.errors import OutOfStock, QuotaExceeded
from airflow_gpu_provider.scaling.decide.scarce_capacity import tried
from airflow_gpu_provider.scaling.decide.shortage import how_to_have_more, missing_for_pods, reported_by_autoscaler
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from tests.unit.scaling.pools import EARLIER, NOW, dry, lease, machine, pod, pool, snapshot

FAILED = dry()
IN_A = {"launch_failure": FAILED, "failures": (FAILED,)}
WAITS = pod("train", None, "run")


def waiting(*machines: Any, wanted: int = 1, **fields: Any) -> PoolSnapshot:
    """A pod waits, so many nodes are wanted, and the last launch in the first zone failed."""
    return snapshot(
        *machines, **{"leases": (lease(nodes=wanted),), "pods": (WAITS,), "train_a_g6_xlarge": IN_A, **fields}
    )


def test_pods_for_which_no_machine_can_be_had_are_told_what_was_tried() -> None:
    error = missing_for_pods(waiting(machine(1), wanted=2), EARLIER)
    assert type(error) is OutOfStock
    assert error.what == (
        "Pool train: 1 of 2 nodes. No capacity for g6.xlarge on-demand in us-west-2a"
        " (tried once, last failed at 01:59Z): InsufficientInstanceCapacity."
    )
    assert [each["zone"] for each in error.details["tried"]] == ["us-west-2a"]


@pytest.mark.parametrize(
    ("lacks", "issues", "fix"),
    [
        ("NodeClaim gpu-1: UnauthorizedOperation: You are not authorized", (), "Give Karpenter that permission"),
        ("NodeClaim gpu-1: NodeNotFound: Node not registered with cluster", (), "See why that machine does not join"),
        ("", ("NodePool gpu has no room in its limits (cpu: 8 of 8)",), "Raise the limits of that NodePool"),
        ("", ("no NodePool would ... (gpu: it is static (replicas), ...)",), "Take replicas out of that NodePool"),
        ("", ("gpu: it is not ready (no controller has set its status: ...)",), "Start Karpenter"),
        ("NodeClaim gpu-1: InsufficientCapacityError", (), pool().how_to_widen),
    ],
)
def test_what_to_do_goes_by_what_keeps_the_provisioner(lacks: str, issues: tuple[str, ...], fix: str) -> None:
    asked = replace(machine(1, state="requested"), lacks=lacks)
    seen = waiting(asked, train_a_g6_xlarge={"provisioner": "Karpenter", "issues": issues})
    assert how_to_have_more(seen, EARLIER).startswith(fix)


def test_a_launch_that_failed_before_the_pods_waited_gives_no_advice() -> None:
    denied = replace(FAILED, message="UnauthorizedOperation: You are not authorized to perform ec2:CreateFleet")
    seen = waiting(train_a_g6_xlarge={"provisioner": "Karpenter", "launch_failure": denied})
    assert how_to_have_more(seen, denied.at) == "Give Karpenter that permission"
    assert how_to_have_more(seen, denied.at + timedelta(minutes=1)) == pool().how_to_widen


EC2 = "Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do not have sufficient"
GOOGLE = "The zone 'projects/p/zones/{zone}' does not have enough resources available. Try a different zone."


@pytest.mark.parametrize("words", [EC2 + " g6.xlarge capacity in {zone}.", GOOGLE], ids=["EC2", "Google"])
def test_what_the_cloud_says_of_several_zones_is_said_once(words: str) -> None:
    in_a, in_b = (replace(FAILED, message=words.format(zone=zone)) for zone in ("us-west-2a", "us-west-2b"))
    unsupported = replace(FAILED, message="g6.xlarge is not supported in us-west-2c.")
    zones = {
        f"train_{each}_g6_xlarge": {"launch_failure": failed, "failures": (failed,)}
        for each, failed in zip("abc", (in_a, in_b, unsupported), strict=True)
    }
    error = missing_for_pods(waiting(**zones), EARLIER)
    assert error is not None
    once = "(tried once, last failed at 01:59Z)"
    assert error.what == (
        f"Pool train: 0 of 1 nodes. No capacity for g6.xlarge on-demand in us-west-2a {once}, g6.xlarge on-demand in"
        f" us-west-2b {once}: {in_a.message.rstrip('.')}; g6.xlarge on-demand in us-west-2c {once}: g6.xlarge is not"
        " supported in us-west-2c."
    )
    assert [each["why"] for each in error.details["tried"]] == [in_a.message, in_b.message, unsupported.message]


@pytest.mark.parametrize(("seconds_before", "times"), [(1.5, 1), (3, 0)])
def test_a_failure_that_the_clocks_put_just_before_the_wait_counts(seconds_before: float, times: int) -> None:
    """The API server tells its time in whole seconds."""
    (found,) = tried(waiting(), FAILED.at + timedelta(seconds=seconds_before))
    assert found.times == times


def test_quota_is_told_from_stock() -> None:
    failed = replace(FAILED, kind="quota", message="VcpuLimitExceeded", quota="L-DB2E81BA")
    error = missing_for_pods(waiting(train_a_g6_xlarge={"launch_failure": failed, "failures": (failed,)}), EARLIER)
    assert type(error) is QuotaExceeded
    assert error.details["quota"] == "L-DB2E81BA"


@pytest.mark.parametrize(
    "seen",
    [
        waiting(machine(1)),
        waiting(machine(1, launched_at=NOW), nodes=(), wanted=2),
        waiting(machine(1), wanted=2, train_a_g6_xlarge={}),
        waiting(train_a_g6_xlarge={"launch_failure": replace(FAILED, kind="other")}),
    ],
    ids=["all machines are there", "one is booting", "nothing failed", "it failed for another reason"],
)
def test_pods_that_lack_something_else_are_not_out_of_stock(seen: PoolSnapshot) -> None:
    assert missing_for_pods(seen, EARLIER) is None


def test_failures_of_the_autoscalers_launches_are_said_with_its_own_words() -> None:
    seen = waiting(spec=pool(scaling="autoscaler"), train_a_g6_xlarge={**IN_A, "autoscaler_name": "eks-a"})
    seen = replace(seen, autoscaler=AutoscalerStatus(updated_at=NOW, backoff={"eks-a": "AWS cannot provision"}))
    assert reported_by_autoscaler(seen, EARLIER) == (
        "no g6.xlarge on-demand in us-west-2a: InsufficientInstanceCapacity",
        "cluster-autoscaler does not try g6.xlarge on-demand in us-west-2a for now: AWS cannot provision",
    )
    silent = replace(seen, autoscaler=AutoscalerStatus(updated_at=NOW))
    assert reported_by_autoscaler(silent, NOW) == (), "that was before they waited"


def test_a_pool_that_this_package_sizes_says_it_with_its_decision() -> None:
    assert reported_by_autoscaler(waiting(), EARLIER) == ()
