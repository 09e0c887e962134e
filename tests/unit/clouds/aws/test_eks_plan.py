"""Plans from plain data: what would change, and whose group is whose."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.clouds.aws.spec import POOL_TAG, changes, check_image, limit_notes
from airflow_gpu_provider.errors import PoolDrift, PoolSpecError
from tests.unit.clouds.aws.test_eks_spec import ZONE, as_described, spec

NAME = "train-a-g6-xlarge"


def test_creates_what_is_missing_and_leaves_what_is_right() -> None:
    wanted = spec()
    (change,) = changes([wanted], {})
    assert (change.action, change.group) == ("create", NAME)
    assert changes([wanted], {NAME: as_described(wanted)}) == ()


def test_an_update_says_what() -> None:
    (change,) = changes([spec(max_nodes=4)], {NAME: as_described(spec())})
    assert change.action == "update"
    assert "maxSize" in change.detail


def test_a_change_that_no_group_shows_is_only_a_tag() -> None:
    """The pool's order of zones is in its hash, and in no field of a group."""
    (change,) = changes([spec(zones=[ZONE])], {NAME: as_described(spec())})
    assert change.detail == "tags airflow-gpu-provider/spec"


def test_immutable_fields_are_drift() -> None:
    with pytest.raises(PoolDrift, match="disk size is 100, wanted 50") as caught:
        changes([spec(disk={"size": 50})], {NAME: as_described(spec())})
    assert caught.value.details["fields"] == ["disk size"]


def test_drift_names_all_groups_at_once() -> None:
    """Each night would end with the next of them."""
    types = ["g6.xlarge", "g6e.xlarge", "p5.4xlarge"]
    former = [spec(instance_types=[name]) for name in types]
    names = [each.candidate.group for each in former]
    found = {name: as_described(each) for name, each in zip(names, former, strict=True)}
    told = rf"{names[0]} differs .* disk size is 100, wanted 50\. The same holds for {names[1]}, {names[2]}\."
    with pytest.raises(PoolDrift, match=told) as drift:
        changes([spec(instance_types=[name], disk={"size": 50}) for name in types], found)
    assert drift.value.details["groups"] == names
    assert all(f"--cluster-name k8s-ml --nodegroup-name {name}" in drift.value.fix for name in names)


def test_drift_of_two_kinds_tells_both() -> None:
    mine, another = spec(instance_types=["g6e.xlarge"]), spec()
    found = {NAME: as_described(another, tags={}), mine.candidate.group: as_described(mine)}
    with pytest.raises(PoolDrift, match=f"{NAME} that this package did not create") as both:
        changes([another, spec(instance_types=["g6e.xlarge"], disk={"size": 50})], found)
    assert "disk size is 100, wanted 50." in both.value.what
    assert "or delete that node group." in both.value.fix
    assert "aws eks delete-nodegroup" in both.value.fix


def test_two_owners_are_both_named() -> None:
    group = as_described(spec("prod/nightly"))
    with pytest.raises(PoolDrift, match=r"prod/nightly.* prod/hourly") as caught:
        changes([spec("prod/hourly", max_nodes=9)], {NAME: group})
    assert (caught.value.details["owner"], caught.value.details["other"]) == ("prod/nightly", "prod/hourly")
    assert any("maxSize" in text for text in caught.value.details["differences"])


@pytest.mark.parametrize("tags", [{}, {POOL_TAG: "other"}])
def test_a_group_without_our_tag_is_nobody_we_know(tags: dict[str, str]) -> None:
    with pytest.raises(PoolDrift, match="did not create"):
        changes([spec()], {NAME: as_described(spec(), tags=tags)})


def test_failed_groups_are_replaced() -> None:
    issues = {"issues": [{"code": "Ec2SubnetNotFound", "message": "gone"}]}
    group = as_described(spec(disk={"size": 50}), status="CREATE_FAILED", health=issues)
    (change,) = changes([spec(disk={"size": 50})], {NAME: group})
    assert "Ec2SubnetNotFound: gone" in change.detail


def test_a_deletion_that_eks_gave_up_is_told_with_its_reason() -> None:
    issues = {"issues": [{"code": "Ec2SecurityGroupDeletionFailure", "message": "in use"}]}
    (change,) = changes([spec()], {NAME: as_described(spec(), status="DELETE_FAILED", health=issues)})
    assert "EKS could not delete it (Ec2SecurityGroupDeletionFailure: in use): deleted again" in change.detail


def test_more_groups_than_eks_allows_by_default_are_told() -> None:
    planned = changes([spec()], {})
    assert limit_notes([f"web-{n}" for n in range(29)], planned) == ()
    (note,) = limit_notes([f"web-{n}" for n in range(30)], planned)
    assert "has 30 managed node groups and would have 31; EKS allows 30" in note
    assert limit_notes([NAME, *(f"web-{n}" for n in range(30))], planned) == ()


@pytest.mark.parametrize(
    ("version", "is_there"), [("1.9", True), ("1.32", True), ("1.33", False), ("1.40", False), ("2.0", False)]
)
def test_amazon_linux_2_ends_with_kubernetes_1_32(version: str, is_there: bool) -> None:
    check_image(spec().pool, version)
    pool = spec(ami_type="AL2_x86_64_GPU").pool
    if is_there:
        check_image(pool, version)
        return
    with pytest.raises(PoolSpecError, match=rf"train: .*k8s-ml has Kubernetes {version}, .* AL2_x86_64_GPU for 1\.32"):
        check_image(pool, version)
