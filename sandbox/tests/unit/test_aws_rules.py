"""The pure parts of the sandbox's AWS: limits, spreads, pages and recurrences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.autoscaling.exceptions import ValidationError
from moto.eks.exceptions import InvalidParameterException

from gpu_sandbox.aws import node_group_rules as rules
from gpu_sandbox.aws.activities import Activity, ActivityLog, page
from gpu_sandbox.aws.launches import LaunchPlan, plan_of
from gpu_sandbox.aws.registration import self_managed_registration
from gpu_sandbox.aws.scheduled_actions import ScheduledAction, check_sizes, next_occurrence

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
SIZES = st.integers(min_value=-2, max_value=6)


@given(min_size=SIZES, max_size=SIZES, desired=SIZES)
def test_a_scaling_config_is_accepted_exactly_within_eks_limits(min_size: int, max_size: int, desired: int) -> None:
    scaling = {"minSize": min_size, "maxSize": max_size, "desiredSize": desired}
    if max_size >= 1 and 0 <= min_size <= desired <= max_size:
        rules.check_scaling(scaling)
    else:
        with pytest.raises(InvalidParameterException):
            rules.check_scaling(scaling)


@given(min_size=SIZES, max_size=SIZES, desired=SIZES)
def test_a_scheduled_size_is_accepted_exactly_within_the_limits(min_size: int, max_size: int, desired: int) -> None:
    if min_size <= desired <= max_size:
        check_sizes(min_size=min_size, max_size=max_size, desired=desired)
    else:
        with pytest.raises(ValidationError):
            check_sizes(min_size=min_size, max_size=max_size, desired=desired)


@pytest.mark.parametrize("key", ["role", "a.b-c_d", "example.com/role", "node.kubernetes.io/role", "x" * 63])
def test_labels_that_kubernetes_takes(key: str) -> None:
    rules.check_labels({key: "v1.0_a-b"})
    rules.check_labels({key: ""})


@pytest.mark.parametrize(
    "labels",
    [
        {"": "x"},
        {"-a": "x"},
        {"a": "-x"},
        {"x" * 64: "x"},
        {"a": "x" * 64},
        {"Upper.com/a": "x"},
        {"k8s.io/a": "x"},
        {"kubernetes.io/a": "x"},
        {"a/b/c": "x"},
    ],
)
def test_labels_that_eks_refuses(labels: dict[str, str]) -> None:
    with pytest.raises(InvalidParameterException):
        rules.check_labels(labels)


@given(
    desired=st.integers(0, 30),
    base=st.integers(0, 10),
    percentage=st.integers(0, 100),
)
def test_markets_fill_base_first_and_then_by_percentage(desired: int, base: int, percentage: int) -> None:
    plan = LaunchPlan(
        subnets=[("s", "z")],
        instance_types=["g6.xlarge"],
        on_demand_base=base,
        on_demand_percentage=percentage,
    )
    present: list[str] = []
    for _ in range(desired):
        present.append(plan.market(desired, present))  # type: ignore[arg-type]

    above = max(desired - base, 0)
    exact = min(desired, base) + above * percentage / 100
    assert exact <= present.count("on-demand") < exact + 1


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_the_emptiest_zone_comes_first(in_use: list[str]) -> None:
    plan = LaunchPlan(subnets=[("s1", "a"), ("s2", "b"), ("s3", "c")], instance_types=["x", "y"])
    zones = [pools[0].zone for pools in plan.by_zone("spot", in_use)]

    counts = [in_use.count(zone) for zone in zones]
    assert counts == sorted(counts)
    assert sorted(zones) == ["a", "b", "c"]


def test_a_plain_group_has_one_type_on_demand() -> None:
    plan = plan_of(subnets=[("s", "z")], mixed_instances_policy=None, template_type="g5.xlarge", template={})
    assert (plan.instance_types, plan.market(3, []), plan.fleet) == (("g5.xlarge",), "on-demand", False)


def activity(number: int) -> Activity:
    return Activity(
        group_name="g",
        group_arn="arn",
        description="Launching",
        cause="",
        start_time=NOW + timedelta(seconds=number),
        subnet_id=None,
        zone="a",
        activity_id=str(number),
    )


@given(count=st.integers(0, 25), size=st.integers(1, 10))
def test_pages_show_each_activity_once_and_in_order(count: int, size: int) -> None:
    log = ActivityLog()
    for number in range(count):
        log.add(activity(number))
    everything = log.of_group("g")
    shown: list[str] = []
    token: str | None = None
    while True:
        part, token = page(everything, max_records=size, next_token=token)
        shown += [one.activity_id for one in part]
        if token is None:
            break

    assert shown == [str(number) for number in reversed(range(count))]


def test_an_unknown_page_is_an_error() -> None:
    with pytest.raises(ValueError):
        page([activity(1)], max_records=1, next_token="nope")


def test_recurrence_follows_the_time_zone_over_the_change_of_clocks() -> None:
    winter = next_occurrence("0 2 * * *", "Europe/Berlin", datetime(2026, 3, 27, 12, tzinfo=UTC))
    summer = next_occurrence("0 4 * * *", "Europe/Berlin", datetime(2026, 3, 29, 12, tzinfo=UTC))

    assert winter == datetime(2026, 3, 28, 1, tzinfo=UTC)
    assert summer == datetime(2026, 3, 30, 2, tzinfo=UTC)


def test_a_recurrence_ends() -> None:
    action = ScheduledAction(
        group_name="g",
        group_arn="arn:aws:autoscaling:us-west-2:1:autoScalingGroup:u:autoScalingGroupName/g",
        name="nightly",
        desired_capacity=0,
        start_time=NOW,
        end_time=NOW + timedelta(days=1),
        recurrence="0 12 * * *",
    )
    following = action.after(NOW)

    assert following is not None
    assert following.start_time == NOW + timedelta(days=1)
    assert following.after(NOW + timedelta(days=1)) is None


def test_kubelet_flags_of_a_self_managed_group() -> None:
    registration = self_managed_registration(tags={"Name": "x"}, user_data=None)
    assert (registration.cluster_name, registration.labels, registration.taints) == (None, {}, ())
