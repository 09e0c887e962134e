"""Node groups as data: requests, and the difference between what is and what should be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.spec import OWNER_TAG, SPEC_TAG, GroupSpec, launch_template

ZONE = "us-west-2a"
SUBNET = "subnet-1"
ROLE = "arn:aws:iam::123456789012:role/node"

words = st.text("abc", min_size=1, max_size=2)
labels = st.dictionaries(words, words, max_size=4)
taints = st.lists(
    st.builds(
        lambda key, value, effect: (key, value, effect),
        words,
        st.one_of(st.just(""), words),
        st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
    ),
    max_size=4,
    unique_by=lambda taint: (taint[0], taint[2]),
).map(lambda parts: tuple(f"{key}={value}:{effect}" for key, value, effect in parts))
sizes = st.integers(1, 5)


def spec(owner: str = "prod/nightly", **changes: Any) -> GroupSpec:
    fields: dict[str, Any] = {
        "name": "train",
        "cluster_name": "k8s-ml",
        "region": "us-west-2",
        "instance_types": ["g6.xlarge"],
        "max_nodes": 2,
    }
    pool = EksGpuPool(**(fields | changes))
    return GroupSpec(pool=pool, owner=owner, candidate=pool.candidates([ZONE])[0], subnet=SUBNET, node_role=ROLE)


def as_described(spec: GroupSpec, **changes: Any) -> dict[str, Any]:
    """What DescribeNodegroup says of a group made by the spec's own request."""
    request = spec.create_request()
    template = request.pop("launchTemplate", None)
    described = {"status": "ACTIVE", "health": {"issues": []}, **request}
    if template:
        described["launchTemplate"] = {"id": "lt-1", "name": "gpu", "version": "1", **template}
    return described | changes


def updated(group: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """What EKS makes of UpdateNodegroupConfig, by its reference."""
    change, taint_change = request.get("labels", {}), request.get("taints", {})
    found = {k: v for k, v in group["labels"].items() if k not in change.get("removeLabels", [])}
    by_key = {(t["key"], t["effect"]): t for t in group["taints"]}
    for taint in taint_change.get("removeTaints", []):
        del by_key[taint["key"], taint["effect"]]
    for taint in taint_change.get("addOrUpdateTaints", []):
        by_key[taint["key"], taint["effect"]] = taint
    return group | {
        "labels": found | change.get("addOrUpdateLabels", {}),
        "taints": list(by_key.values()),
        "scalingConfig": group["scalingConfig"] | request.get("scalingConfig", {}),
    }


@given(before=labels, after=labels, taints_before=taints, taints_after=taints, limit=sizes, wanted=sizes, runs=sizes)
def test_an_update_leaves_no_difference(
    before: dict[str, str],
    after: dict[str, str],
    taints_before: tuple[str, ...],
    taints_after: tuple[str, ...],
    limit: int,
    wanted: int,
    runs: int,
) -> None:
    old = spec(node_labels=before, taints=taints_before, max_nodes=limit)
    new = spec(node_labels=after, taints=taints_after, max_nodes=wanted)
    group = as_described(old)
    group["scalingConfig"]["desiredSize"] = min(runs, limit)

    request = new.update_request(group)
    group = updated(group, request)

    assert new.differences(group) == []
    assert new.update_request(group) == {}
    assert group["scalingConfig"]["maxSize"] >= group["scalingConfig"]["desiredSize"]


@given(labels=labels, taints=taints)
def test_what_was_just_created_does_not_differ(labels: dict[str, str], taints: tuple[str, ...]) -> None:
    wanted = spec(node_labels=labels, taints=taints)
    assert wanted.differences(as_described(wanted)) == []
    assert wanted.missing_tags(as_described(wanted)) == {}


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("gpu", {"name": "gpu"}),
        ("gpu:3", {"name": "gpu", "version": "3"}),
        ("lt-0abc", {"id": "lt-0abc"}),
        ("lt-0abc:$Latest", {"id": "lt-0abc", "version": "$Latest"}),
    ],
)
def test_launch_template(text: str, request_: dict[str, str]) -> None:
    assert launch_template(text) == request_
    wanted = spec(launch_template=text)
    assert "diskSize" not in wanted.create_request()
    resolved = {"id": "lt-0abc", "name": "gpu", "version": "3"}
    assert wanted.differences(as_described(wanted, launchTemplate=resolved)) == []


def test_a_template_that_is_another_differs_and_its_version_does_not() -> None:
    """UpdateNodegroupVersion changes the version, and neither id nor name: botocore."""
    found = as_described(spec(launch_template="gpu:3"), launchTemplate={"id": "lt-1", "name": "other", "version": "2"})
    for text in ("gpu:3", "gpu:$Latest", "gpu"):
        (difference,) = spec(launch_template=text).differences(found)
        assert (str(difference), difference.update) == ("launch_template is other, wanted gpu", None)
    for text in ("other:3", "lt-1:3", "other", "lt-1:$Default"):
        assert spec(launch_template=text).differences(found) == []


def test_a_group_whose_updates_would_add_machines_is_told_not_to() -> None:
    """Those of earlier releases have EKS's default strategy."""
    found = as_described(spec(), updateConfig={"maxUnavailablePercentage": 50})
    (difference,) = spec().differences(found)
    assert str(difference) == "update strategy is DEFAULT, wanted MINIMAL"
    wanted = {"maxUnavailablePercentage": 50, "updateStrategy": "MINIMAL"}
    assert spec().update_request(found)["updateConfig"] == wanted
    assert spec().differences(as_described(spec(), updateConfig=wanted)) == []


def test_a_custom_ami_is_left_to_the_template() -> None:
    request = spec(ami_type="CUSTOM", launch_template="gpu").create_request()
    assert "amiType" not in request


def test_bottlerocket_has_the_root_volume_of_its_image() -> None:
    """EKS gives diskSize to the root device, and Bottlerocket's images and pods are on another."""
    wanted = spec(ami_type="BOTTLEROCKET_x86_64_NVIDIA")
    assert "diskSize" not in wanted.create_request()
    assert wanted.differences(as_described(wanted, diskSize=20)) == []
    assert wanted.differences(as_described(wanted, diskSize=100)) == []


def test_what_the_spec_leaves_open_never_differs() -> None:
    wanted = spec()
    group = as_described(wanted, subnets=["subnet-9"], nodeRole="arn:aws:iam::123456789012:role/other")
    assert wanted.differences(group) == []


def test_what_the_spec_names_does() -> None:
    wanted = spec(subnets=[SUBNET], node_role=ROLE)
    group = as_described(wanted, subnets=["subnet-9"], nodeRole="arn:aws:iam::123456789012:role/other")
    assert [(d.field, d.update) for d in wanted.differences(group)] == [("subnet", None), ("node_role", None)]


def test_the_first_owner_stays() -> None:
    other = spec("prod/hourly")
    group = as_described(spec("prod/nightly"))
    assert other.missing_tags(group) == {}
    group["tags"].pop(OWNER_TAG)
    assert other.missing_tags(group) == {OWNER_TAG: "prod/hourly"}


def test_tags_of_others_stay() -> None:
    wanted = spec(tags={"team": "ml"})
    group = as_described(wanted)
    group["tags"] |= {"aws:cloudformation:stack": "x", "team": "web", SPEC_TAG: "old"}
    assert wanted.missing_tags(group) == {"team": "ml", SPEC_TAG: wanted.pool.spec_hash}


def test_a_launch_template_of_the_users_own_is_not_passed_over_for_ours() -> None:
    ours = spec(disk={"throughput": 600})
    group = {**ours.create_request(), "launchTemplate": {"name": "k8s-ml/" + ours.candidate.group, "id": "lt-1"}}
    assert "launch_template" not in {each.field for each in spec().differences(group)}
    (difference,) = [each for each in spec(launch_template="my-own").differences(group) if "template" in each.field]
    assert (difference.found, difference.wanted, difference.update) == (group["launchTemplate"]["name"], "my-own", None)
