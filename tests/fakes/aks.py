"""A fourth cloud, as a package beside this one has it: pool class, platform, and the cloud as an object in memory.

Its scale sets are one for each VM size, in one zone, and machines join the cluster of a sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from airflow_gpu_provider.clouds.base import Group, GroupChange, Machine, MachineLife, Plan, Platform, Report
from airflow_gpu_provider.clouds.kubernetes.kubernetes_connection import access_from_connection
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.pools import Candidate, GpuPool
from airflow_gpu_provider.pools.candidates import Market

ZONE = "westeurope-1"


@dataclass(frozen=True, kw_only=True, eq=True)
class AksGpuPool(GpuPool):
    kind: ClassVar[str] = "aks"
    __hash__ = GpuPool.__hash__

    cluster_name: str
    vm_sizes: Sequence[str] = ("Standard_NC4as_T4_v3",)
    taints: Sequence[str] = ()

    @property
    def platform_path(self) -> str:
        return f"{__name__}:AksPlatform"

    @property
    def gpus_per_node(self) -> int:
        return 1

    @property
    def gpu_products(self) -> tuple[str, ...]:
        return ("T4",)

    @property
    def console_url(self) -> str:
        return "https://portal.azure.com"

    @property
    def cluster_identity(self) -> str:
        return f"aks/{self.cluster_name}"

    @property
    def markets(self) -> tuple[Market, ...]:
        return ("ON_DEMAND",)

    @property
    def machine_types(self) -> Sequence[str]:
        return self.vm_sizes


@dataclass
class Vm:
    """A machine of a scale set; `node` is its name in the cluster."""

    node: str
    scale_set: str
    size: str
    labels: Mapping[str, str]
    created_at: datetime
    deleted_at: datetime | None = None


@dataclass
class Azure:
    """The cloud: the capacity of each scale set, and all machines that there were.

    Attributes:
        joins, leaves: Called with a machine that is there, or that is not any more.
    """

    joins: Callable[[Vm], None] = lambda vm: None
    leaves: Callable[[Vm], None] = lambda vm: None
    capacity: dict[str, int] = field(default_factory=dict)
    vms: list[Vm] = field(default_factory=list)

    def running(self, scale_set: str) -> list[Vm]:
        return [vm for vm in self.vms if vm.scale_set == scale_set and vm.deleted_at is None]

    def scale(self, scale_set: str, capacity: int, size: str, labels: Mapping[str, str]) -> None:
        for _ in range(capacity - len(self.running(scale_set))):
            vm = Vm(f"{scale_set}-vm{len(self.vms)}".lower(), scale_set, size, labels, datetime.now(UTC))
            self.vms.append(vm)
            self.joins(vm)
        self.capacity[scale_set] = capacity

    def delete(self, node: str) -> None:
        (vm,) = (vm for vm in self.vms if vm.node == node and vm.deleted_at is None)
        vm.deleted_at = datetime.now(UTC)
        self.capacity[vm.scale_set] -= 1
        self.leaves(vm)


AZURE = Azure()


class AksPlatform(Platform):
    """A pool of scale sets; of the cluster, a Kubernetes connection has the credentials."""

    def __init__(self, pool: AksGpuPool, owner: str = "") -> None:
        self._pool = pool
        self._sizes = {f"{pool.name}-{size.replace('_', '-').lower()}": size for size in pool.vm_sizes}

    def cluster_access(self) -> ClusterAccess:
        return access_from_connection("kubernetes_default", None)

    def plan(self, nodes: int) -> Plan:
        missing = [name for name in self._sizes if name not in AZURE.capacity]
        first, there = next(iter(self._sizes)), sum(map(len, map(AZURE.running, self._sizes)))
        return Plan(
            pool=self._pool.name,
            changes=tuple(GroupChange(action="create", group=name, detail=self._sizes[name]) for name in missing),
            grow=(f"{first} {there}->{nodes}",) if there < nodes else (),
        )

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        for change in plan.changes:
            AZURE.capacity[change.group] = 0
            report(f"scale set {change.group} is created at size 0")

    def observe(self) -> tuple[Group, ...]:
        return tuple(self._group(name) for name in self._sizes if name in AZURE.capacity)

    def _group(self, name: str) -> Group:
        running = [
            Machine(id=vm.node, group=name, state="running", launched_at=vm.created_at) for vm in AZURE.running(name)
        ]
        return Group(
            name=name,
            candidate=Candidate(group=name, zone=ZONE, instance_type=self._sizes[name], market="ON_DEMAND"),
            status="active",
            desired=AZURE.capacity[name],
            max_size=self._pool.max_nodes,
            machines=tuple(running),
            has_switch=False,
        )

    def grow(self, sizes: Mapping[str, int]) -> None:
        for name, capacity in sizes.items():
            own = {"topology.kubernetes.io/zone": ZONE, "node.kubernetes.io/instance-type": self._sizes[name]}
            AZURE.scale(name, capacity, self._sizes[name], {**self._pool.labels, **own})

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        for machine in machines:
            AZURE.delete(machine.id)
        return ()

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        return {}  # each machine that is asked for is there at once

    def lives(self, groups: Sequence[Group], since: datetime, known: Collection[str] = ()) -> tuple[MachineLife, ...]:
        return tuple(
            MachineLife(id=vm.node, group=vm.scale_set, node=vm.node, launched_at=vm.created_at, ended_at=vm.deleted_at)
            for vm in AZURE.vms
            if vm.scale_set in {group.name for group in groups}
        )

    def delete(self, report: Report) -> None:
        for name in self._sizes:
            if AZURE.capacity.pop(name, None) is not None:
                report(f"scale set {name} is deleted")


def install(folder: Path, package: str, *entries: str) -> None:
    """Leave in a folder of the path what an installer leaves of a package that registers kinds of pools."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(("[airflow_gpu_provider.clouds]", *entries, "")))
