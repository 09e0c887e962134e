"""The cloud beside a world's cluster: what a pool has there, and when its own deadline comes. Seen from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

from moto.eks.models import eks_backends

from airflow_gpu_provider.clouds.aws.spec import GROUP_TAG, POOL_TAG
from gpu_sandbox import Sandbox
from gpu_sandbox.aws.observer import aws_client, instances
from tests.airflow.chaos.pods import POOL_LABEL

Platform = Literal["eks", "gke", "karpenter"]
"""The cloud whose machines a world's pools have; with Karpenter, the cluster is EKS'."""

NAMES: Mapping[Platform, str] = {"eks": "EKS", "gke": "GKE", "karpenter": "Karpenter"}

Use = Literal["usual", "scarce", "bystander", "efa"]
"""What a night runs on; one that is out of stock where a fault says so; that of the run beside all others; with EFA."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a pool has beside machines: groups, what was made with them, and its machines' network interfaces."""

    groups: int = 0
    templates: int = 0
    placement_groups: int = 0
    interfaces: int = 0


class Cloud(Protocol):
    """One of the two clouds, or Karpenter.

    Attributes:
        node_label: The label of a pool's nodes whose value is the pool's name.
        env: What the nights' DAGs have to know of it.
    """

    machine_types: Mapping[Use, str]
    node_label: str
    env: Mapping[str, str]

    def prepare(self, pool: str) -> None:
        """Make what has to be there before a pool is."""

    def close(self) -> None:
        """End what `prepare` has begun."""

    def has_groups(self, pool: str) -> bool:
        """Whether the pool has a node group, one that is still being created too."""

    def groups(self, pool: str) -> list[dict[str, Any]]:
        """The pool's groups of machines."""

    def instances(self, pool: str) -> list[str]:
        """The names of the pool's machines that have not ended, whether or not their group still knows them."""

    def made(self, pool: str) -> Made:
        """What the pool has beside machines, whether or not its groups are there."""

    def strays(self) -> list[str]:
        """What of all pools is there without the group, or the machine, that it was made for."""

    def deadline(self, pool: str) -> datetime | None:
        """When the cloud itself is to have ended all of the pool's machines; None where it has none."""

    def interrupt_spot(self, pool: str, *, one: bool = False) -> bool:
        """Give the pool's spot machines that run their notice, or only one of them; False where none does."""

    def hold_back_gpus(self, hold: bool) -> None:
        """Have the GPUs of new nodes never become allocatable, or do so again."""

    def expire(self, pool: str) -> None:
        """Let the time of the pool's nodes be over, with what runs on them."""


class _OwnGroups:
    """Groups that the package makes."""

    node_label = POOL_LABEL
    env: Mapping[str, str] = {}

    def prepare(self, pool: str) -> None: ...

    def close(self) -> None: ...

    def made(self, pool: str) -> Made:
        return Made(groups=len(self.groups(pool)))

    def strays(self) -> list[str]:
        return []

    def groups(self, pool: str) -> list[dict[str, Any]]:
        raise NotImplementedError

    def expire(self, pool: str) -> None:
        raise NotImplementedError("only Karpenter's nodes expire")


class Eks(_OwnGroups):
    """AWS: instances in Auto Scaling groups, which a scheduled action sets to zero."""

    machine_types: Mapping[Use, str] = {
        "usual": "g6.xlarge",
        "scarce": "g5.xlarge",
        "bystander": "g4dn.xlarge",
        "efa": "p4d.24xlarge",
    }

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def has_groups(self, pool: str) -> bool:
        return any(name.startswith(f"{pool}-") for name in self._group_names())

    def _group_names(self) -> list[str]:
        """From moto itself: a call could be failed by a fault, and a new group has no Auto Scaling group yet."""
        backend = eks_backends[self._sandbox.aws.account_id][self._sandbox.region]
        return list(backend.clusters[self._sandbox.cluster_name].nodegroups)

    def groups(self, pool: str) -> list[dict[str, Any]]:
        return _of_pool(self._sandbox, pool)

    def instances(self, pool: str) -> list[str]:
        return [id_ for id_, state in self._of_groups(pool).items() if state != "terminated"]

    def _of_groups(self, pool: str = "") -> dict[str, str]:
        """The states of the instances of the pool's groups, or of all, the ended ones too."""
        prefix = f"{pool}-" if pool else ""
        return {
            each["InstanceId"]: each["State"]["Name"]
            for each in instances(self._sandbox.aws)
            if (group := _tag(each, "eks:nodegroup-name")) and group.startswith(prefix)
        }

    def made(self, pool: str) -> Made:
        machines = self._of_groups(pool)
        return Made(
            groups=sum(name.startswith(f"{pool}-") for name in self._group_names()),
            templates=sum(_tag(each, POOL_TAG) == pool for each in self._templates()),
            placement_groups=sum(_tag(each, POOL_TAG) == pool for each in self._placement_groups()),
            interfaces=sum(machine in machines for _, machine in self._interfaces()),
        )

    def strays(self) -> list[str]:
        groups = self._group_names()
        beside = [*self._templates(), *self._placement_groups()]
        over = [id_ for id_, state in self._of_groups().items() if state == "terminated"]
        return [
            *(str(each) for each in beside if _tag(each, GROUP_TAG) not in groups),
            *(f"{name} of {machine}, which has ended" for name, machine in self._interfaces() if machine in over),
        ]

    def _templates(self) -> list[dict[str, Any]]:
        """Those that this package made: EKS makes one of its own for each group without."""
        filters = [{"Name": "tag-key", "Values": [POOL_TAG]}]
        found = aws_client(self._sandbox.aws, "ec2").describe_launch_templates(Filters=filters)
        return list(found["LaunchTemplates"])

    def _placement_groups(self) -> list[dict[str, Any]]:
        return list(aws_client(self._sandbox.aws, "ec2").describe_placement_groups()["PlacementGroups"])

    def _interfaces(self) -> Iterator[tuple[str, str]]:
        """Those of machines, with the machine."""
        for each in aws_client(self._sandbox.aws, "ec2").describe_network_interfaces()["NetworkInterfaces"]:
            if attached := each.get("Attachment"):
                yield each["NetworkInterfaceId"], attached["InstanceId"]

    def deadline(self, pool: str) -> datetime | None:
        client = aws_client(self._sandbox.aws, "autoscaling")
        times: list[datetime] = []
        for group in self.groups(pool):
            if group["desired"]:
                found = client.describe_scheduled_actions(AutoScalingGroupName=group["name"])
                times += [action["StartTime"] for action in found["ScheduledUpdateGroupActions"]]
        return max(times, default=None)

    def interrupt_spot(self, pool: str, *, one: bool = False) -> bool:
        found = (_is_interrupted(self._sandbox, instance=each) for each in self.instances(pool))
        return any(found) if one else any([*found])

    def hold_back_gpus(self, hold: bool) -> None:
        """There is no device plugin."""
        self._sandbox.faults.device_plugin_never_ready = hold


class Gke(_OwnGroups):
    """Google Cloud: machines in managed instance groups, each with a max_run_duration."""

    machine_types: Mapping[Use, str] = {
        "usual": "g2-standard-4",
        "scarce": "a2-highgpu-1g",
        "bystander": "g2-standard-8",
    }

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def has_groups(self, pool: str) -> bool:
        return bool(self.groups(pool))

    def groups(self, pool: str) -> list[dict[str, Any]]:
        return _of_pool(self._sandbox, pool)

    def instances(self, pool: str) -> list[str]:
        return [each["instance_id"] for group in self.groups(pool) for each in group["instances"]]

    def deadline(self, pool: str) -> datetime | None:
        """As for machines that begin their time now: those that are there have lived for a minute of it at most."""
        lifetimes = [
            group.template.max_run_seconds
            for group in self._sandbox.google.node_pools.groups()
            if group.template.node_pool.startswith(f"{pool}-") and group.target_size
        ]
        limited = [seconds for seconds in lifetimes if seconds is not None]
        return datetime.now(UTC) + timedelta(seconds=max(limited)) if limited else None

    def interrupt_spot(self, pool: str, *, one: bool = False) -> bool:
        """By their nodes, which are called as they are."""
        found = (_is_interrupted(self._sandbox, node=each) for each in self.instances(pool))
        return any(found) if one else any([*found])

    def hold_back_gpus(self, hold: bool) -> None:
        """NVIDIA's driver never becomes ready."""
        self._sandbox.faults.driver_never_ready = hold


def cloud_of(platform: Platform, sandbox: Sandbox) -> Cloud:
    if platform == "karpenter":
        from tests.airflow.chaos.karpenter import Karpenter  # what it stands for is of the other tests

        return Karpenter(sandbox)
    return Eks(sandbox) if platform == "eks" else Gke(sandbox)


def _tag(resource: Mapping[str, Any], key: str) -> str:
    return next((tag["Value"] for tag in resource.get("Tags", ()) if tag["Key"] == key), "")


def _is_interrupted(sandbox: Sandbox, **named: str) -> bool:
    try:
        sandbox.interrupt_spot(**named)
    except ValueError:  # it does not run yet, or has just gone by itself
        return False
    return True


def _of_pool(sandbox: Sandbox, pool: str) -> list[dict[str, Any]]:
    return [group for group in sandbox.cluster.groups() if (group["nodegroup"] or "").startswith(f"{pool}-")]
