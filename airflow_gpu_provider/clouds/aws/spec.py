"""What a pool's node groups should look like: CreateNodegroup's request, and how a group that exists differs.

Pure data: no call is made here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_gpu_provider.clouds.aws.autoscaler_tags import node_labels
from airflow_gpu_provider.clouds.aws.instance_types import Fabric
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.reservations import RESERVATION_TAG, types_of
from airflow_gpu_provider.clouds.aws.rules import DEFAULT_DISK_GIB
from airflow_gpu_provider.clouds.aws.template_data import described, template_data, template_name
from airflow_gpu_provider.clouds.base import GroupChange
from airflow_gpu_provider.clouds.group_checks import (
    Difference,
    changes_of,
    check_claim,
    check_fixed,
    fixed_differences,
    taint_texts,
)
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import Candidate

POOL_TAG = "airflow-gpu-provider/pool"
SPEC_TAG = "airflow-gpu-provider/spec"
OWNER_TAG = "airflow-gpu-provider/owner"
ZONE_TAG = "airflow-gpu-provider/zone"
CLUSTER_TAG = "airflow-gpu-provider/cluster"
GROUP_TAG = "airflow-gpu-provider/group"
"""Of what this package makes for a node group beside it, in a service that knows no clusters."""

UPDATE_TAG = "airflow-gpu-provider/update"
"""The id of the last update of a group's version that this package began: EKS tells by it how that went."""

UPDATE_STRATEGY = "MINIMAL"
"""By it EKS ends a machine before it adds another when it updates a group, and adds none where there is none.

EKS's user guide, "Understand each phase of node updates": by the default one it adds two in each zone first.
"""


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """One node group of a pool, as it should be.

    `subnet` and `node_role` are None where they were not resolved: what the spec leaves to a default is only
    needed to create a group, and never a difference of one that exists. `release` is the image's, empty where EKS is to
    take the newest, `min_size` is for an autoscaler to keep, `fabric` the nodes' network, and `placement_group` its
    reservation's.
    """

    pool: EksGpuPool
    owner: str
    candidate: Candidate
    subnet: str | None = None
    node_role: str | None = None
    release: str = ""
    min_size: int = 0
    fabric: Fabric | None = None
    placement_group: str = ""

    @property
    def labels(self) -> dict[str, str]:
        return node_labels(self.pool, self.candidate.instance_type)

    @property
    def tags(self) -> dict[str, str]:
        """The user's tags and ours."""
        ours = {POOL_TAG: self.pool.name, SPEC_TAG: self.pool.spec_hash, ZONE_TAG: self.candidate.zone}
        of, kind = self.candidate.reservation, self.candidate.instance_type
        reserved = {RESERVATION_TAG: f"{of} {kind}"} if of else {}
        return {**self.pool.tags, **ours, **reserved, **({OWNER_TAG: self.owner} if self.owner else {})}

    @property
    def capacity_type(self) -> str:
        """The group's market in EKS's words: what an On-Demand Capacity Reservation gives is on demand."""
        return "ON_DEMAND" if self.candidate.market == "RESERVED" else self.candidate.market

    @property
    def taints(self) -> list[dict[str, str]]:
        """The taints in EKS's spelling, which leaves an empty value out."""
        return [{name: text for name, text in taint.in_the_cloud.items() if text} for taint in self.pool.parsed_taints]

    def template_data(self, group: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return what the group's launch template of ours is to say; None where it needs none.

        `group` is DescribeNodegroup's answer where it exists: one that was made with such a template keeps it.
        """
        has_one = group is not None and self.has_own_template(group)
        made_in = self.placement_group
        return template_data(self.pool, self.candidate, has_one=has_one, fabric=self.fabric, made_in=made_in)

    def has_own_template(self, group: Mapping[str, Any]) -> bool:
        """Return True if a group was made with a launch template of ours."""
        name = (group.get("launchTemplate") or {}).get("name")
        return bool(name == template_name(self.pool, self.candidate.group))

    def create_request(self, template: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return CreateNodegroup's parameters, for a group of its minimum size.

        `template` is the launch template of ours that it is made from: id and version.
        """
        pool = self.pool
        request: dict[str, Any] = {
            "clusterName": pool.cluster_name,
            "nodegroupName": self.candidate.group,
            "scalingConfig": {"minSize": self.min_size, "desiredSize": self.min_size, "maxSize": pool.max_nodes},
            "subnets": [self.subnet],
            "nodeRole": self.node_role,
            "capacityType": self.capacity_type,
            "labels": self.labels,
            "taints": self.taints,
            "tags": self.tags,
            "updateConfig": {"maxUnavailable": 1, "updateStrategy": UPDATE_STRATEGY},
        }
        if self.capacity_type != "CAPACITY_BLOCK":  # whose template has the type
            request["instanceTypes"] = [self.candidate.instance_type]
        if pool.ami_type != "CUSTOM":  # EKS refuses the word next to a template that names the AMI
            request["amiType"] = pool.ami_type
        if self.release:
            request["releaseVersion"] = self.release
        if template:
            request["launchTemplate"] = dict(template)
        elif pool.launch_template:
            request["launchTemplate"] = launch_template(pool.launch_template)
        elif not pool.has_image_volume:
            request["diskSize"] = pool.disk.get("size", DEFAULT_DISK_GIB)
        return request

    def differences(self, group: Mapping[str, Any]) -> list[Difference]:
        """Compare DescribeNodegroup's answer with the spec; tags are not compared."""
        return [*self._immutable_differences(group), *self._mutable_differences(group)]

    def update_request(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return UpdateNodegroupConfig's parameters for the mutable differences, or {} where there are none."""
        updates = {
            key: change for each in self._mutable_differences(group) for key, change in (each.update or {}).items()
        }
        which = {"clusterName": self.pool.cluster_name, "nodegroupName": self.candidate.group}
        return {**which, **updates} if updates else {}

    def missing_tags(self, group: Mapping[str, Any]) -> dict[str, str]:
        """Return the tags that the group lacks, or has with another value; an owner that it has stays."""
        found = group.get("tags", {})
        wanted = {key: value for key, value in self.tags.items() if key != OWNER_TAG or not found.get(key)}
        return {key: value for key, value in wanted.items() if found.get(key) != value}

    def _immutable_differences(self, group: Mapping[str, Any]) -> list[Difference]:
        pool = self.pool
        pairs: list[tuple[str, Any, Any]] = [
            ("instance type", ", ".join(types_of(group)), self.candidate.instance_type),
            ("capacity type", group.get("capacityType", "ON_DEMAND"), self.capacity_type),
        ]
        if pool.ami_type != "CUSTOM":
            pairs.append(("ami_type", group.get("amiType"), pool.ami_type))
        if pool.subnets and self.subnet:
            pairs.append(("subnet", ", ".join(group.get("subnets", [])), self.subnet))
        if pool.node_role:
            pairs.append(("node_role", group.get("nodeRole"), pool.node_role))
        if pool.launch_template or self.template_data(group) is None:
            if not pool.launch_template and not pool.has_image_volume:
                pairs.append(("disk size", group.get("diskSize"), pool.disk.get("size", DEFAULT_DISK_GIB)))
            pairs.append(("launch_template", *_comparable_templates(group, pool.launch_template)))
        elif not self.has_own_template(group):
            found = (group.get("launchTemplate") or {}).get("name")
            whys = (*pool.own_template_fields, *(("reservations",) if self.candidate.reservation else ()))
            pairs.append(("launch_template", found, f"one of its own, for {', '.join(whys)}"))
        return fixed_differences(pairs)

    def _mutable_differences(self, group: Mapping[str, Any]) -> list[Difference]:
        taints, wanted_taints = taint_texts(group.get("taints", [])), taint_texts(self.taints)
        changes = {
            "maxSize, minSize": (
                "scalingConfig",
                self._scaling_change(group),
                _scaling(group),
                self._wanted_scaling(group),
            ),
            "labels": ("labels", self._label_change(group), group.get("labels", {}), self.labels),
            "taints": ("taints", self._taint_change(group), taints, wanted_taints),
            "update strategy": (
                "updateConfig",
                _strategy_change(group),
                _strategy(group),
                UPDATE_STRATEGY,
            ),
        }
        return [
            Difference(field=field, found=str(found), wanted=str(wanted), update={key: change})
            for field, (key, change, found, wanted) in changes.items()
            if change
        ]

    def _wanted_scaling(self, group: Mapping[str, Any]) -> dict[str, int]:
        # A group that is larger than the spec's new limit shrinks first: EKS refuses a limit below the size.
        desired = int(group.get("scalingConfig", {}).get("desiredSize", 0))
        return {"minSize": self.min_size, "maxSize": max(self.pool.max_nodes, desired)}

    def _scaling_change(self, group: Mapping[str, Any]) -> dict[str, int]:
        wanted = self._wanted_scaling(group)
        if _scaling(group) == wanted:
            return {}
        desired = int(group.get("scalingConfig", {}).get("desiredSize", 0))
        return {**wanted, "desiredSize": self.min_size} if desired < self.min_size else wanted

    def _label_change(self, group: Mapping[str, Any]) -> dict[str, Any]:
        found, wanted = group.get("labels", {}), self.labels
        return _payload(
            "Labels",
            added={key: value for key, value in wanted.items() if found.get(key) != value},
            removed=sorted(found.keys() - wanted.keys()),
        )

    def _taint_change(self, group: Mapping[str, Any]) -> dict[str, Any]:
        found = {(t["key"], t["effect"]): t for t in group.get("taints", [])}
        wanted = {(t["key"], t["effect"]): t for t in self.taints}
        return _payload(
            "Taints",
            added=[t for key, t in wanted.items() if key not in found or _value(found[key]) != _value(t)],
            removed=[found[key] for key in sorted(found.keys() - wanted.keys())],
        )


def launch_template(text: str) -> dict[str, str]:
    """Read "name", "lt-...", or either with ":version", as EKS's LaunchTemplateSpecification."""
    name, _, version = text.partition(":")
    reference = {"id" if name.startswith("lt-") else "name": name}
    return {**reference, "version": version} if version else reference


def template_is_pinned(reference: Mapping[str, str]) -> bool:
    """Return True if the version of a template is a number, not one that moves: $Latest, $Default, or none."""
    return not reference.get("version", "$Default").startswith("$")


def is_of_template(group: Mapping[str, Any], text: str) -> bool:
    """Return True if a group was made with that template, of whichever version."""
    found, wanted = _comparable_templates(group, text)
    return found == wanted


def _comparable_templates(group: Mapping[str, Any], wanted: str | None) -> tuple[str | None, str | None]:
    """Return both templates in the words of the spec, without versions, which can be changed.

    EKS answers with id, name and version whatever it was asked with.
    """
    found = group.get("launchTemplate") or {}
    if not found or not wanted:
        return found.get("name"), wanted
    ((key, value),) = ((key, value) for key, value in launch_template(wanted).items() if key != "version")
    return found.get(key), value


def _strategy(group: Mapping[str, Any]) -> str:
    return (group.get("updateConfig") or {}).get("updateStrategy") or "DEFAULT"


def _strategy_change(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole updateConfig, as EKS wants it, with our strategy."""
    if _strategy(group) == UPDATE_STRATEGY:
        return {}
    return {**(group.get("updateConfig") or {"maxUnavailable": 1}), "updateStrategy": UPDATE_STRATEGY}


def _payload(what: Literal["Labels", "Taints"], *, added: Any, removed: Any) -> dict[str, Any]:
    """Return UpdateNodegroupConfig's payload, without its empty parts."""
    parts = {f"addOrUpdate{what}": added, f"remove{what}": removed}
    return {key: value for key, value in parts.items() if value}


def _scaling(group: Mapping[str, Any]) -> dict[str, int]:
    found = group.get("scalingConfig", {})
    return {"minSize": int(found.get("minSize", 0)), "maxSize": int(found.get("maxSize", 0))}


def _value(taint: Mapping[str, str]) -> str:
    return taint.get("value") or ""


# -- what would change in a pool's node groups, and when that is refused ------------------------------------------

GROUP_QUOTA = "Managed node groups per cluster"
GROUP_QUOTA_CODE = "L-6D54EA21"
_GROUPS_BY_DEFAULT = 30  # "Amazon EKS endpoints and quotas" of AWS's General Reference; it can be raised

_LAST_WITH_AL2 = (1, 32)  # "EKS AL2 & AL2-Accelerated AMIs transition guide" in EKS's user guide

GONE_SOON = ("DELETING", "DELETE_FAILED")


def changes(
    specs: Iterable[GroupSpec],
    groups: Mapping[str, Mapping[str, Any]],
    stale_tags: Mapping[str, Sequence[str]] | None = None,
) -> tuple[GroupChange, ...]:
    """Compare the specs with DescribeNodegroup's answers, by group name.

    `stale_tags` are the tags for cluster-autoscaler to put on each group, or to remove.

    Raises:
        PoolDrift: A group is not ours, is another writer's with another spec, or differs where EKS cannot change it.
    """

    def change_of(spec: GroupSpec) -> GroupChange | None:
        name = spec.candidate.group
        return _change(spec, groups.get(name), (stale_tags or {}).get(name, ()))

    return changes_of(specs, change_of)


def check_image(pool: EksGpuPool, version: str) -> None:
    """Refuse to create groups whose image EKS does not have for the cluster's Kubernetes, like "1.36".

    Raises:
        PoolSpecError: The image is of Amazon Linux 2, and Kubernetes 1.33 or later.
    """
    if not pool.ami_type.startswith("AL2_") or tuple(map(int, version.split(".")[:2])) <= _LAST_WITH_AL2:
        return
    last = ".".join(map(str, _LAST_WITH_AL2))
    raise PoolSpecError(
        f"Pool {pool.name}: cluster {pool.cluster_name} has Kubernetes {version}, and EKS has images of ami_type"
        f" {pool.ami_type} for {last} and earlier only.",
        "Use the default AL2023_x86_64_NVIDIA, or BOTTLEROCKET_x86_64_NVIDIA.",
        ami_type=pool.ami_type,
    )


def limit_notes(names: Collection[str], changes: Iterable[GroupChange]) -> tuple[str, ...]:
    """Return what to know where the cluster would have more node groups than EKS allows by default.

    `names` are those of the groups that it has.
    """
    new = [change.group for change in changes if change.action == "create" and change.group not in names]
    total = len(names) + len(new)
    if not new or total <= _GROUPS_BY_DEFAULT:
        return ()
    return (
        f"the cluster has {len(names)} managed node groups and would have {total}; EKS allows {_GROUPS_BY_DEFAULT},"
        f" unless quota {GROUP_QUOTA!r} ({GROUP_QUOTA_CODE}) was raised: the pool then does without its least wanted",
    )


def issues(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a group's health issues in EKS's words."""
    found = group.get("health", {}).get("issues", [])
    return tuple(f"{issue.get('code')}: {issue.get('message', '')}".strip() for issue in found)


def trouble(group: Mapping[str, Any]) -> str:
    """Return a group's health issues in one text."""
    return "; ".join(issues(group)) or "no reason given"


def _change(spec: GroupSpec, group: Mapping[str, Any] | None, stale_tags: Sequence[str]) -> GroupChange | None:
    name = spec.candidate.group
    if group is None:
        size = f"created at size {spec.min_size}" if spec.min_size else "created empty"
        data = spec.template_data()
        template = f", with a launch template: {described(data)}" if data else ""
        detail = f"{spec.candidate}, {spec.subnet}, at most {spec.pool.max_nodes}, {size}{template}"
        return GroupChange(action="create", group=name, detail=detail)
    tags = group.get("tags", {})
    owner = tags.get(OWNER_TAG)
    check_claim(
        spec,
        group,
        cluster=spec.pool.cluster_name,
        what="node group",
        made_for=tags.get(POOL_TAG),
        owner=owner,
        is_ours=owner == spec.owner or tags.get(SPEC_TAG) == spec.pool.spec_hash,
        mark=f"the group's tag {OWNER_TAG}",
    )
    if group["status"] == "DELETE_FAILED":
        detail = f"EKS could not delete it ({trouble(group)}): deleted again, and recreated once it is gone"
        return GroupChange(action="create", group=name, detail=detail)
    if group["status"] in GONE_SOON:
        return GroupChange(action="create", group=name, detail="is being deleted; recreated once it is gone")
    if group["status"] == "CREATE_FAILED":
        detail = f"EKS could not create it ({trouble(group)}): deleted; the next run recreates it"
        return GroupChange(action="update", group=name, detail=detail)
    return _repair(spec, group, stale_tags)


def _repair(spec: GroupSpec, group: Mapping[str, Any], stale_tags: Sequence[str]) -> GroupChange | None:
    differences = spec.differences(group)
    name, which = spec.candidate.group, f"--cluster-name {spec.pool.cluster_name}"
    differs, command = f"Node group {name} differs where EKS cannot change it", "aws eks delete-nodegroup"
    check_fixed(spec, differences, differs=differs, what="group", command=f"{command} {which} --nodegroup-name {name}")
    details = [str(difference) for difference in differences]
    tags = spec.missing_tags(group)
    if tags:
        details.append(f"tags {', '.join(sorted(tags))}")
    if stale_tags:
        details.append(f"tags for cluster-autoscaler {', '.join(stale_tags)}")
    return GroupChange(action="update", group=name, detail="; ".join(details)) if details else None
