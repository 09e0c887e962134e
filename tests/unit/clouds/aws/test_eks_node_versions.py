"""What node groups' nodes are made from, and what newer would be: by UpdateNodegroupVersion's own rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.node_versions import (
    Newest,
    behind,
    can_be_updated,
    changes,
    notes,
    read_newest,
    update_request,
    why_recreated,
)
from airflow_gpu_provider.clouds.group_checks import Difference
from airflow_gpu_provider.errors import CloudError, PermissionDenied
from tests.unit.clouds.aws.test_eks_spec import as_described, spec

AMI = "AL2023_x86_64_NVIDIA"
NEWEST = Newest(kubernetes="1.36", releases={AMI: "1.36.3-20260827", "BOTTLEROCKET_x86_64_NVIDIA": "1.64.0-7c4f0d2b"})
TEMPLATE = {"id": "lt-1", "name": "gpu", "version": "1"}
NAME = "train-a-g6-xlarge"


def group(
    version: str = "1.36", release: str = "1.36.3-20260827", pool: dict[str, Any] | None = None, **changes: Any
) -> Any:
    made = as_described(spec(**(pool or {})), version=version, releaseVersion=release)
    return made | ({"launchTemplate": TEMPLATE} if "launchTemplate" in made else {}) | changes


def said(found: dict[str, Any], newest: Newest = NEWEST, **pool: Any) -> list[str]:
    return [str(each) for each in behind(spec(**pool).pool, found, newest)]


@pytest.mark.parametrize(
    ("version", "release", "wanted"),
    [
        ("1.36", "1.36.3-20260827", []),
        ("1.35", "1.35.6-20260301", ["Kubernetes is 1.35, wanted 1.36"]),
        ("1.9", "1.9.0-20260301", ["Kubernetes is 1.9, wanted 1.36"]),
        ("1.36", "1.36.2-20260801", ["image release is 1.36.2-20260801, wanted 1.36.3-20260827"]),
        ("1.36", "1.36.3-20260801", ["image release is 1.36.3-20260801, wanted 1.36.3-20260827"]),
        # Parameter Store may be behind, and EKS goes back to no earlier release, nor version.
        ("1.36", "1.36.4-20260901", []),
        ("1.37", "1.37.0-20260901", []),
    ],
)
def test_older_ones_are_behind(version: str, release: str, wanted: list[str]) -> None:
    assert [each for each in said(group(version, release)) if version == "1.36" or "Kubernetes" in each] == wanted


def test_an_image_is_compared_only_where_the_newest_is_known() -> None:
    assert said(group(release="1.36.0-20250101"), Newest(kubernetes="1.36")) == []


def test_a_release_that_the_pool_names_is_gone_to_and_back_to() -> None:
    """EKS rolls no group back: it is recreated, and made from what the pool names."""
    wanted = "1.36.3-20260801"
    pool: dict[str, Any] = {"ami_release": wanted}
    newest = replace(NEWEST, releases={AMI: wanted})
    assert said(group(release="1.36.2-20260701"), newest, **pool) == [
        f"image release is 1.36.2-20260701, wanted {wanted}"
    ]
    later = group(release="1.36.3-20260827")
    assert said(later, newest, **pool) == [f"image release is 1.36.3-20260827, wanted {wanted}"]
    (change,) = changes(spec(**pool).pool, [later], newest, {})
    assert (change.action, change.detail.endswith("EKS takes no group back to an earlier release: recreated")) == (
        "upgrade",
        True,
    )
    assert spec(**pool).create_request().get("releaseVersion") is None, "the platform resolves it"
    assert said(group(release=wanted), newest, **pool) == []
    (note,) = notes(spec(**pool).pool, [], replace(NEWEST, kubernetes="1.37"), ())
    assert note.startswith(f"ami_release {wanted} is an image for another Kubernetes than the cluster's 1.37")


def test_one_that_is_too_young_is_told_to_whom_it_will_come() -> None:
    coming = {AMI: ("1.36.4-20261126", datetime(2026, 12, 3, tzinfo=UTC))}
    newest = replace(NEWEST, releases={}, coming=coming)
    assert said(group(), newest) == []
    (note,) = notes(spec().pool, [group()], newest, ())
    assert "1.36.4-20261126 is new, and groups of AL2023_x86_64_NVIDIA get it from 2026-12-03 on" in note
    assert notes(spec().pool, [group(release="1.36.4-20261126")], newest, ()) == ()
    moved = replace(newest, own={NAME: [Difference(field="x", found="1", wanted="2", update={})]})
    assert update_request(spec().pool, group(), moved)["releaseVersion"] == "1.36.3-20260827"


def test_bottlerocket_s_release_has_a_hash() -> None:
    pool: dict[str, Any] = {"ami_type": "BOTTLEROCKET_x86_64_NVIDIA"}
    assert said(group(release="1.64.0-ffffffff", pool=pool), **pool) == []
    assert said(group(release="1.63.9-7c4f0d2b", pool=pool), **pool) == [
        "image release is 1.63.9-7c4f0d2b, wanted 1.64.0-7c4f0d2b"
    ]


@pytest.mark.parametrize(("text", "number"), [("gpu:2", "2"), ("lt-1", "3"), ("gpu:$Latest", "3")])
def test_a_template_s_version_is_brought_up_and_down(text: str, number: str) -> None:
    newest, pool = replace(NEWEST, template=number), {"launch_template": text}
    found = group(pool=pool)
    assert said(found, newest, **pool) == [f"launch template version is 1, wanted {number}"]
    found["launchTemplate"] = {**TEMPLATE, "version": number}
    assert said(found, newest, **pool) == []
    assert said(found, replace(NEWEST, template=None), **pool) == []


def test_the_request_names_what_is_wanted_and_nothing_older() -> None:
    found = group("1.35", "1.35.6-20260301")
    which = {"clusterName": "k8s-ml", "nodegroupName": NAME}
    assert update_request(spec().pool, found, NEWEST) == {
        **which,
        "version": "1.36",
        "releaseVersion": "1.36.3-20260827",
    }
    assert update_request(spec().pool, group(), NEWEST) == {}
    pool = {"launch_template": "gpu:$Latest"}
    newer = group(release="1.36.4-20260901", pool=pool)
    assert update_request(spec(**pool).pool, newer, replace(NEWEST, template="2")) == {
        **which,
        "version": "1.36",
        "releaseVersion": "1.36.4-20260901",  # EKS would take the newest, held or too young
        "launchTemplate": {"name": "gpu", "version": "2"},
    }


def test_an_image_of_the_template_s_own_is_changed_by_the_template_alone() -> None:
    """With "version" beside it "the node group update will fail" (botocore)."""
    pool = {"ami_type": "CUSTOM", "launch_template": "gpu:2"}
    found = group("1.35", "ami-1", pool=pool, amiType="CUSTOM")
    assert update_request(spec(**pool).pool, found, replace(NEWEST, template="2")) == {
        "clusterName": "k8s-ml",
        "nodegroupName": NAME,
        "launchTemplate": {"name": "gpu", "version": "2"},
    }
    (note,) = notes(spec(**pool).pool, [found], replace(NEWEST, template="1"), ())
    assert "has Kubernetes 1.35 and the cluster 1.36: create a launch template version with an image for that" in note


def test_a_group_of_an_earlier_spec_keeps_its_own_template() -> None:
    pool: dict[str, Any] = {"launch_template": "gpu:2"}
    found = group("1.35", "1.35.6-20260301", pool=pool, launchTemplate={**TEMPLATE, "id": "lt-9", "name": "old"})
    request = update_request(spec(**pool).pool, found, replace(NEWEST, template="2"))
    assert request["launchTemplate"] == {"id": "lt-9", "version": "1"}


@pytest.mark.parametrize("status", ["ACTIVE", "DEGRADED"])
def test_a_group_whose_own_template_is_gone_is_recreated_once_it_is_empty(status: str) -> None:
    pool: dict[str, Any] = {"disk": {"throughput": 600}}
    template = {"id": "lt-1", "name": f"k8s-ml/{NAME}", "version": "1"}
    found = group(pool=pool, launchTemplate=template, status=status)
    gone = Difference(field="launch template", found="gone", wanted=template["name"])
    newest = replace(NEWEST, own={NAME: [gone]})
    assert why_recreated(spec(**pool).pool, found, newest)
    (change,) = changes(spec(**pool).pool, [found], newest, {})
    assert change.detail.endswith("recreated")
    assert change.action == ("upgrade" if status == "ACTIVE" else "update")
    (note,) = notes(spec(**pool).pool, [found], newest, {NAME})
    assert note.endswith(
        "EKS takes no other for a group that is there: when its runs have ended, the next one recreates it"
    )
    another = [Difference(field="/dev/xvda Iops", found="3000", wanted="6000", update={})]
    assert not why_recreated(spec(**pool).pool, found, replace(NEWEST, own={NAME: another}))


def test_the_plan_says_what_ensure_will_do_and_what_went_wrong_before() -> None:
    old = group("1.35", "1.35.6-20260301")
    (change,) = changes(spec().pool, [old, group()], NEWEST, {NAME: "NodeCreationFailure: no room"})
    assert (change.action, change.group) == ("upgrade", NAME)
    assert change.detail == (
        "Kubernetes is 1.35, wanted 1.36; image release is 1.35.6-20260301, wanted 1.36.3-20260827;"
        " EKS could not, the last time: NodeCreationFailure: no room"
    )
    assert changes(spec().pool, [old | {"status": "UPDATING"}], NEWEST, {}) == ()


def test_a_degraded_group_is_made_anew_where_it_keeps_the_cluster_back() -> None:
    """EKS updates none; a newer image alone waits for a launch that works."""
    degraded = group("1.35", "1.35.6-20260301", status="DEGRADED")
    (change,) = changes(spec().pool, [degraded], NEWEST, {})
    assert change.action == "update"
    assert "recreated from Kubernetes 1.36" in change.detail
    assert changes(spec().pool, [group(release="1.36.0-20260101", status="DEGRADED")], NEWEST, {}) == ()


def test_a_group_with_machines_is_left_and_named_with_the_command() -> None:
    old = group("1.35", "1.36.3-20260827")
    (note,) = notes(spec().pool, [old, group()], NEWEST, [NAME])
    assert f"{NAME} has machines, and stays as it is until it has none: Kubernetes is 1.35, wanted 1.36" in note
    command = "update-nodegroup-version --cluster-name k8s-ml --nodegroup-name train-a-g6-xlarge --kubernetes-version"
    assert f"{command} 1.36" in note


def test_no_update_of_a_group_that_would_launch_machines_for_it() -> None:
    assert can_be_updated(group())
    assert not can_be_updated(group(updateConfig={"maxUnavailable": 1}))
    assert not can_be_updated(group(status="UPDATING"))


class Ssm:
    """Parameter Store, which answers each call, or raises."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer, self.asked = answer, list[str]()

    def call(self, method: str, *, Name: str) -> dict[str, Any]:  # AWS's name
        self.asked.append(Name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"Parameter": {"Value": self.answer}}

    def now(self) -> datetime:
        return datetime(2026, 11, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ami_type", "name"),
    [
        (AMI, "/aws/service/eks/optimized-ami/1.36/amazon-linux-2023/x86_64/nvidia/recommended/release_version"),
        ("AL2_x86_64_GPU", "/aws/service/eks/optimized-ami/1.36/amazon-linux-2-gpu/recommended/release_version"),
        (
            "BOTTLEROCKET_ARM_64_NVIDIA_FIPS",
            "/aws/service/bottlerocket/aws-k8s-1.36-nvidia-fips/arm64/latest/image_version",
        ),
    ],
)
def test_the_newest_release_is_read_once_for_each_kind_of_image(ami_type: str, name: str) -> None:
    ssm: Any = Ssm("1.36.3-20260827")
    groups = [group(amiType=ami_type), group(amiType=ami_type), group(amiType="CUSTOM")]
    newest = read_newest(spec().pool, "1.36", groups, ssm=ssm, ec2=ssm)
    assert (ssm.asked, newest.releases, newest.unread) == ([name], {ami_type: "1.36.3-20260827"}, ())


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            PermissionDenied("AWS refused.", action="ssm:GetParameter"),
            "newest image of AL2023_x86_64_NVIDIA: ssm:GetParameter is not allowed",
        ),
        (
            CloudError("AWS (ssm) did not answer: timed out."),
            "newest image of AL2023_x86_64_NVIDIA: AWS (ssm) did not answer",
        ),
    ],
)
def test_who_cannot_read_it_is_told_by_the_doctor_alone(error: Exception, why: str) -> None:
    ssm: Any = Ssm(error)
    newest = read_newest(spec().pool, "1.36", [group()], ssm=ssm, ec2=ssm)
    assert newest.releases == {}
    assert [why in each for each in newest.unread] == [True]
