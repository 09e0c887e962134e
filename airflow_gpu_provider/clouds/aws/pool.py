"""EksGpuPool: GPU nodes of an Amazon EKS cluster, in managed node groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, cast

from airflow_gpu_provider.accelerators import GpusOfMachine, NodeSize
from airflow_gpu_provider.clouds.aws import machine_types
from airflow_gpu_provider.clouds.aws.rules import (
    EFA_RESOURCE,
    IN_TEMPLATES,
    EksDisk,
    efa_of_a_pod,
    efa_problems,
    faster_starts,
    release_problems,
    reservation_problems,
    volume_problems,
)
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.candidates import Candidate, Market, Preferences
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.on_nodes import FabricPlugin, NodesToCome, PodFabric
from airflow_gpu_provider.pools.values import are_some_of, as_constants, as_plain, closest, is_template

_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+")  # botocore's partitions: eusc-de-east-1 is AWS's European cloud
_CONSOLES = {
    "cn": "console.amazonaws.cn",
    "us-gov": "console.amazonaws-us-gov.com",
    "eusc": "console.amazonaws-eusc.eu",
}
GPU_FAMILY = re.compile(r"(g|gr|p)\d")
"""How the names of EC2's families with GPUs begin, those too that are newer than the catalogue."""
_TYPE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")
# botocore, LaunchTemplateSpecification: a number, $Latest or $Default.
_TEMPLATE = re.compile(r"[\w().\-/]{3,128}(:([1-9]\d*|\$Latest|\$Default))?")
_MARKETS = ("RESERVED", "ON_DEMAND", "SPOT")
_MAX_GROUP_NAME = 63  # EKS CreateNodegroup: nodegroupName
# The fields that shape a node group; the device plugin's operator also learns from ami_type what nodes have.
SHAPE = (
    "capacity_types",
    "reservations",
    "zones",
    "subnets",
    "disk",
    *IN_TEMPLATES,
    "ami_release",
    "node_role",
    "launch_template",
    "tags",
    "autoscaling_options",
)
ACCELERATOR_LABEL = "k8s.amazonaws.com/accelerator"
"""cluster-autoscaler recognizes GPU nodes by this label; without it, it may start several nodes for one pod."""

IMAGE_VOLUME = "/dev/xvdb"
"""Bottlerocket's volume for images and pods: 20 GiB where no launch template says otherwise."""

AUTOSCALING_OPTIONS = (  # cluster-autoscaler 1.36: config/const.go
    "ignoredaemonsetsutilization",
    "maxnodeprovisiontime",
    "maxnodestartuptime",
    "scaledowngpuutilizationthreshold",
    "scaledownunneededtime",
    "scaledownunreadytime",
    "scaledownutilizationthreshold",
)
_GPU_AMI_TYPES = (
    "AL2023_x86_64_NVIDIA",
    "AL2023_ARM_64_NVIDIA",
    "BOTTLEROCKET_x86_64_NVIDIA",
    "BOTTLEROCKET_ARM_64_NVIDIA",
    "BOTTLEROCKET_x86_64_NVIDIA_FIPS",
    "BOTTLEROCKET_ARM_64_NVIDIA_FIPS",
    "AL2_x86_64_GPU",
    "CUSTOM",
)
_RESERVED_BY_EKS = ("kubernetes.io", "k8s.io", "eks.amazonaws.com")
_RESERVED_BY_KUBERNETES = ("kubernetes.io", "k8s.io")
# The exceptions: labels that a kubelet may set on its own node, by the rule of its flag --node-labels.
_KUBELETS_OWN = ("kubelet.kubernetes.io", "node.kubernetes.io")
_OTHER_LABEL = "Use a domain of your own, like team.example.com/role, or none."


@dataclass(frozen=True, kw_only=True, eq=True)
class EksGpuPool(GpuPool):
    """GPU nodes of an Amazon EKS cluster.

    There is one managed node group for each zone, instance type and capacity type: a group over several zones
    is rebalanced by AWS under running jobs (aws/containers-roadmap#1453), and spot groups choose by price and
    capacity, not by order. Candidates are tried in order: every zone for the first instance type on the first
    capacity type, then the next instance type, then the next capacity type. EKS allows a cluster 30 managed node
    groups by default (quota L-6D54EA21): a pool that would exceed it leaves out its least preferred candidates.

    With `manage="scale"` the groups are external: those that `node_groups` and `asg_names` name, in order of
    preference. Leave out the fields that shape groups: zones, subnets, capacity_types, reservations, disk,
    ami_release, user_data, launch_template, network, fast_start, node_role, tags, autoscaling_options.

    Args: Needed
        cluster_name: The EKS cluster.
        region: AWS region, like "us-west-2".

    Args: Machines
        instance_types: EC2 types with NVIDIA GPUs, in order of preference. With manage="scale" they may be left out,
            and a run then gives nodes= instead of gpus=; where they are given, the groups' types have to be among them.
        capacity_types: "RESERVED", "ON_DEMAND" and "SPOT", in order of preference. Default on-demand only.
        reservations: Ids of On-Demand Capacity Reservations and Capacity Blocks, in order of preference, for
            "RESERVED": those of the pool's types and zones are used (docs/reservations.md). None is bought.
        zones: Availability zones, in order of preference. Default: those of the subnets.

    Args: Disk, image and boot
        disk: The volume of images and pods, `{"size": 200, "throughput": 600, "iops": 6000}` or some of these: GiB,
            MiB/s and I/O operations a second. Default 100 GiB, and gp3's 125 and 3000; Bottlerocket's own 20 GiB with
            BOTTLEROCKET_*, where it is not the root volume. With throughput or iops, user_data, network, fast_start,
            reservations, or any disk of Bottlerocket, each node group has a launch template that this package makes,
            and deletes with it (docs/node-images.md). Not with launch_template.
        fast_start: Have images there sooner: on the type's local NVMe disks, pulled and unpacked in parallel, or on a
            volume of 600 MiB/s if it has none (docs/fast-start.md). Default False.
        ami_type: EKS AMI type, matching the processors of the instance types. Default AL2023_x86_64_NVIDIA: driver and
            container toolkit, no device plugin. EKS offers AL2_x86_64_GPU up to Kubernetes 1.32. With "CUSTOM" EKS adds
            labels and taints only after a node has joined: have the kubelet register with them in the template's
            user data.
        ami_release: The image's release, like "1.36.3-20260827": new groups are made from it, and those without
            machines brought to it (docs/node-images.md). Default: the newest that is a week old.
        user_data: What nodes read at boot: with AL2023_* nodeadm's NodeConfig, as a dict or in YAML; with
            BOTTLEROCKET_* its settings in TOML. EKS adds its own.
        launch_template: Name or id of an EC2 launch template, with ":version" where it is not the default. It has to
            exist when a group is created, must name no instance type, and an image only with "CUSTOM". Groups without
            machines follow its version; "$Latest", "$Default" and no version mean what they mean today.

    Args: Network and identity
        subnets: Subnet ids. Default: those of the cluster's other node groups, private ones before public ones; in
            zones where there is no other node group, the cluster's own, and the plan says so.
        network: "efa": nodes have all EFA interfaces of their type, and those of a group are near each other, for
            trainings on several of them (docs/multi-node.md). Default: one network interface.
        node_role: ARN of the nodes' IAM role. Default: the role of the cluster's other Linux node groups.
        tags: AWS tags for the node groups.
        aws_conn_id: Airflow connection. Default aws_default.

    Args: Groups of others, and autoscalers
        node_groups: manage="scale": managed node groups of the cluster, by name.
        asg_names: manage="scale": Auto Scaling groups whose instances join the cluster by themselves, by name. They
            come after node_groups.
        autoscaling_options: With scaling="autoscaler": cluster-autoscaler's options for these groups alone, like
            {"scaledownunneededtime": "5m"}. Default: the options that it was started with.

    The other arguments are GpuPool's.
    """

    kind: ClassVar[str] = "eks"
    placed_by: ClassVar[tuple[str, ...]] = (*GpuPool.placed_by, "instance_types", "capacity_types")
    types_field: ClassVar[str] = "instance_types"
    unknown_type: ClassVar[str] = "g99.xlarge"
    allowed_by: ClassVar[tuple[str, ...]] = (*GpuPool.allowed_by, "instance_types", "capacity_types", "zones")
    cluster_fields: ClassVar[tuple[str, ...]] = ("cluster_name", "region", "aws_conn_id")
    private_fields: ClassVar[Mapping[str, str]] = {
        "cluster_name": "cluster",
        "aws_conn_id": "connection",
        "node_role": "role",
        "launch_template": "launch-template",
    }
    __hash__ = GpuPool.__hash__  # a dataclass would generate one, which fails on fields that are dictionaries

    cluster_name: str
    region: str
    instance_types: Sequence[str] = ()
    capacity_types: Sequence[Market] = ("ON_DEMAND",)
    reservations: Sequence[str] = ()
    zones: Sequence[str] = ()
    subnets: Sequence[str] = ()
    disk: EksDisk = field(default_factory=EksDisk)
    network: str | None = None
    fast_start: bool = False
    user_data: dict[str, object] | str | None = None
    ami_type: str = "AL2023_x86_64_NVIDIA"
    ami_release: str | None = None
    node_role: str | None = None
    launch_template: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    node_groups: Sequence[str] = ()
    asg_names: Sequence[str] = ()
    autoscaling_options: dict[str, str] = field(default_factory=dict)
    aws_conn_id: str | None = "aws_default"

    @property
    def spot_labels(self) -> Mapping[str, tuple[str, ...]]:
        # EKS labels the nodes of managed node groups; self-managed groups may have no such label.
        return {"eks.amazonaws.com/capacityType": ("SPOT",)}

    @property
    def platform_path(self) -> str:
        if self.manage == "scale":
            return "airflow_gpu_provider.clouds.aws.external_platform:ExternalEksPlatform"
        return "airflow_gpu_provider.clouds.aws.owned_platform:OwnedEksPlatform"

    @property
    def remains_path(self) -> str:
        return "airflow_gpu_provider.clouds.aws.remains:remains"

    @property
    def nodes_join_unlabelled(self) -> bool:
        # With a custom AMI, EKS gives nodes the group's labels and taints only some time after they have joined.
        return super().nodes_join_unlabelled or self.ami_type == "CUSTOM"

    @property
    def has_image_volume(self) -> bool:
        """Whether images and pods are on IMAGE_VOLUME rather than the root volume: Bottlerocket's are."""
        return self.ami_type.startswith("BOTTLEROCKET_")

    @property
    def takes_cluster_autoscaler(self) -> bool:
        return True

    @property
    def nodes_to_come(self) -> NodesToCome:
        types = [machine_types.instance_type(name) for name in self.instance_types]
        archs = {machine.arch for machine in types if machine}
        labels = {"topology.kubernetes.io/region": self.region}
        if len(archs) == 1 and None not in types:
            labels["kubernetes.io/arch"] = archs.pop()
        if len(types) == 1:
            labels["node.kubernetes.io/instance-type"] = self.instance_types[0]
        found = super().nodes_to_come
        return replace(
            found,
            labels={**found.labels, **labels},
            driver=found.driver if self.ami_type == "CUSTOM" else f"nodes have it from their image, {self.ami_type}",
            image_with_plugin="Bottlerocket" if self.has_image_volume else "",
        )

    def fabric_plugin(self, image: str | None = None) -> FabricPlugin | None:
        from airflow_gpu_provider.clouds.aws.efa_plugin import efa_plugin

        return efa_plugin(EFA_RESOURCE, image) if self.network == "efa" else None

    def fabric_of(self, gpus: int) -> PodFabric | None:
        if self.network != "efa":
            return None
        return efa_of_a_pod(self.node_sizes, gpus, is_bottlerocket=self.has_image_volume)

    @property
    def how_to_start_sooner(self) -> str:
        if self.fast_start:
            return ""
        return faster_starts(self.instance_types, is_owned=self.manage == "full")

    @property
    def room_for_images(self) -> int | None:
        return self.disk.get("size") if self.user_data is None else None

    @property
    def own_template_fields(self) -> tuple[str, ...]:
        """The fields for which the pool's groups have launch templates of this package's; empty: they have none.

        Bottlerocket's volume for images is one: EKS's own diskSize is that of the other volume.
        """
        needs_one = self.disk.keys() - (set() if self.has_image_volume else {"size"})
        volume = ("disk",) if needs_one else ()
        return (*volume, *self._given(*IN_TEMPLATES)) if self.manage == "full" else ()

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) not in (None, False, {})]

    @property
    def needs_cluster_autoscaler(self) -> bool:
        return self.is_autoscaled

    @property
    def gpus_per_node(self) -> int | None:
        known = [machine_types.instance_type(name) for name in self.instance_types]
        return None if None in known else min((cast("Any", machine).gpus for machine in known), default=None)

    @property
    def node_sizes(self) -> dict[str, NodeSize | None]:
        return {name: machine_types.eks_node_size(name) for name in self.instance_types}

    def gpus_of(self, machine_type: str) -> GpusOfMachine | None:
        return machine_types.gpus_of_type(machine_type)

    @property
    def gpu_products(self) -> tuple[str, ...]:
        known = (machine_types.instance_type(name) for name in self.instance_types)
        return tuple(dict.fromkeys(machine.gpu.name for machine in known if machine))

    @property
    def console_url(self) -> str:
        tab = f"#/clusters/{self.cluster_name}?selectedTab=cluster-compute-tab"
        others = (host for prefix, host in _CONSOLES.items() if self.region.startswith(f"{prefix}-"))
        host = next(others, "console.aws.amazon.com")
        return f"https://{self.region}.{host}/eks/home?region={self.region}{tab}"

    @property
    def cluster_identity(self) -> str:
        return f"eks/{self.aws_conn_id}/{self.region}/{self.cluster_name}"

    def accelerator_of(self, instance_type: str) -> str | None:
        """Return the value of ACCELERATOR_LABEL for nodes of this type; None where neither spec nor catalogue knows."""
        known = machine_types.instance_type(instance_type)
        return self.node_labels.get(ACCELERATOR_LABEL) or (known.gpu.accelerator if known else None)

    @property
    def markets(self) -> tuple[Market, ...]:
        return tuple(self.capacity_types)

    @property
    def machine_types(self) -> Sequence[str]:
        return self.instance_types

    @property
    def cluster_region(self) -> str:
        return self.region

    @property
    def preferences(self) -> Preferences:
        return replace(super().preferences, reservations=self.reservations)

    @property
    def how_to_widen(self) -> str:
        if self.manage == "scale":
            return "Name more groups in the pool's node_groups or asg_names"
        return "Add zones, instance_types or capacity_types to the pool"

    @property
    def groups_of_others(self) -> Mapping[str, Sequence[str]]:
        return {"node_groups": self.node_groups, "asg_names": self.asg_names}

    @property
    def is_switched_off(self) -> bool:
        return True

    @property
    def spot_notice(self) -> int:
        """Two minutes (EC2, "Spot Instance interruption notices")."""
        return 120

    def candidates(self, zones: Iterable[str]) -> tuple[Candidate, ...]:
        """Return the pool's candidates over `zones`, the most preferred first; without those of reservations."""
        return self.preferences.candidates(zones, self._group_name)

    def reserved_candidate(self, reservation: str, zone: str, instance_type: str, market: Market) -> Candidate:
        group = f"{self._group_name(zone, instance_type, market)}-{reservation}"
        return Candidate(group=group, zone=zone, instance_type=instance_type, market=market, reservation=reservation)

    def _group_name(self, zone: str, instance_type: str, market: Market) -> str:
        zone_suffix = zone.removeprefix(self.region).strip("-")
        spot = "-spot" if market == "SPOT" else ""
        return f"{self.name}-{zone_suffix}-{instance_type.replace('.', '-')}{spot}"

    def _coerce(self) -> None:
        super()._coerce()
        self._set("capacity_types", as_constants(self.capacity_types))
        self._set("user_data", as_plain(self.user_data))

    def _validate(self) -> None:
        super()._validate()
        self._check("cluster_name", bool, "the name of an EKS cluster")
        self._check("region", _REGION.fullmatch, "an AWS region, like us-west-2")
        if "CAPACITY_BLOCK" in self.capacity_types:
            raise self._error(
                "capacity_types: a Capacity Block is one of the pool's reservations",
                'Name it in reservations, and "RESERVED" here (docs/reservations.md).',
            )
        self._check(
            "capacity_types", partial(are_some_of, _MARKETS), "RESERVED, ON_DEMAND, SPOT, or some of them, in order"
        )
        self._check("ami_type", _GPU_AMI_TYPES.__contains__, f"one of {', '.join(_GPU_AMI_TYPES)}")
        if self.launch_template is not None:
            wanted = "a launch template's name or id, with :3, :$Latest or :$Default where a version is meant"
            self._check("launch_template", _TEMPLATE.fullmatch, wanted)
        self._check_manage(SHAPE)
        self._check("scaling", ("direct", "autoscaler").__contains__, '"direct" or "autoscaler"')
        self._check_instance_types()
        self._check_processors()
        self._check_reserved_labels()
        if not is_template([self.reservations, self.capacity_types, self.launch_template, self.scaling]):
            self._refuse(self._reservation_problems())
        self._check_zones()
        self._check_autoscaling()
        self._check("network", (None, "efa").__contains__, '"efa", or left out')
        if not is_template(
            [self.ami_type, self.instance_types, self.disk, *(getattr(self, name) for name in IN_TEMPLATES)]
        ):
            self._refuse(self._template_problems())
        if self.ami_release is not None and not is_template([self.ami_release, self.ami_type]):
            self._refuse(release_problems(self.ami_release, self.ami_type))
        if self.ami_type == "CUSTOM" and not self.launch_template and self.manage == "full":
            raise self._error('ami_type="CUSTOM" needs a launch_template that names the AMI')

    def _reservation_problems(self) -> Iterator[tuple[str, str]]:
        yield from reservation_problems(
            self.reservations,
            is_market="RESERVED" in self.capacity_types,
            launch_template=self.launch_template,
            is_autoscaled=self.is_autoscaled,
        )

    def _template_problems(self) -> Iterator[tuple[str, str]]:
        """Yield what cannot work of what EKS takes in a launch template alone, each with its fix."""
        given = self._given("disk", *IN_TEMPLATES)
        if self.launch_template and given:
            what = f"{', '.join(given)} and launch_template exclude each other: the template says it"
            yield what, "Give one or the other."
        yield from volume_problems(self.disk)
        if self.user_data is not None:
            from airflow_gpu_provider.clouds.aws.user_data import problems

            yield from problems(self.user_data, self.ami_type)
        if self.network is not None:
            yield from efa_problems(self.instance_types, self.ami_type, is_autoscaled=self.is_autoscaled)

    def _check_instance_types(self) -> None:
        if is_template(self.instance_types):
            return
        if len(set(self.instance_types)) < len(self.instance_types):
            raise self._error(f"instance_types names one twice: {', '.join(self.instance_types)}")
        for name in self.instance_types:
            self._check_instance_type(name)

    def _check_processors(self) -> None:
        """Reject an image for processors other than an instance type's."""
        if self.manage != "full" or self.ami_type == "CUSTOM" or is_template((self.ami_type, *self.instance_types)):
            return
        arch, other = ("arm64", "x86_64") if "ARM_64" in self.ami_type else ("amd64", "ARM_64")
        for name in self.instance_types:
            its = machine_types.arch_of(name)
            if its not in (None, arch):
                fitting = [
                    each for each in _GPU_AMI_TYPES if other in each and "FIPS" not in each and "AL2_" not in each
                ]
                raise self._error(
                    f"{name} has {its} processors, and ami_type {self.ami_type} is for {arch}",
                    f"Choose one of {', '.join(fitting)}, and types of one kind of processor.",
                )

    def _check_reserved_labels(self) -> None:
        """Reject labels that EKS's CreateNodegroup or a node's kubelet rejects: such a node never joins."""
        if self.manage != "full":
            return
        for key, value in self.node_labels.items():
            domain = key.rpartition("/")[0]
            if domain in _RESERVED_BY_EKS:
                raise self._error(f"node_labels: EKS rejects {key}: the domain {domain} is its own", _OTHER_LABEL)
            if _within(domain, _RESERVED_BY_KUBERNETES) and not _within(domain, _KUBELETS_OWN):
                why = "no kubelet may set labels of that domain on its node, and the node would never join"
                raise self._error(f"node_labels: {key}: {why}", _OTHER_LABEL)
            if value == "":
                raise self._error(f"node_labels: EKS accepts no label without a value: {key}", "Give it a value.")

    def _check_instance_type(self, name: str) -> None:
        family = name.split(".")[0]
        if family in machine_types.AMD_FAMILIES:
            raise self._error(f"the GPUs of {name} are AMD's, not NVIDIA's", "Choose a type like g6.xlarge.")
        if family in machine_types.KEPLER_FAMILIES and self.manage == "full" and self.ami_type != "CUSTOM":
            raise self._error(
                f"{name} has Kepler GPUs, which the drivers of ami_type {self.ami_type} do not serve: 470 was the last",
                'Choose a newer type, like g6.xlarge, or ami_type="CUSTOM" with an image that has driver 470.',
            )
        if machine_types.instance_type(name):
            return
        families = {known.split(".")[0] for known in machine_types.instance_types()}
        if _TYPE.fullmatch(name) and family not in families and GPU_FAMILY.match(family):
            return  # a GPU family newer than the catalogue: EKS will check it
        close = closest(name, machine_types.instance_types())
        hint = f"Did you mean {close}?" if close else "Choose a type with NVIDIA GPUs, like g6.xlarge."
        raise self._error(f"{name!r} is not an EC2 instance type with GPUs", hint)

    def _check_autoscaling(self) -> None:
        """Reject what the tags that describe an empty group's nodes to cluster-autoscaler cannot express."""
        options = self.autoscaling_options
        if options and self.scaling == "direct":
            raise self._error('autoscaling_options needs scaling="autoscaler"')
        for name in options:
            if name not in AUTOSCALING_OPTIONS and not is_template(name):
                raise self._error(
                    f"autoscaling_options: {name!r} is not an option of cluster-autoscaler for one group",
                    f"Known are {', '.join(AUTOSCALING_OPTIONS)}.",
                )
        if not self.is_autoscaled or not self.is_rendered:
            return
        keys = [taint.key for taint in self.parsed_taints]
        for taint in self.parsed_taints:
            if not taint.value:
                raise self._error(f"cluster-autoscaler drops taints without a value: {taint}", "Give it a value.")
            if keys.count(taint.key) > 1:
                raise self._error(f"cluster-autoscaler's tags can express only one taint with the key {taint.key}")
        for name in self.instance_types:
            if self.accelerator_of(name) is None:
                raise self._error(
                    f"{name} is not in the catalogue, so cluster-autoscaler cannot learn which GPU it has",
                    f'Set node_labels["{ACCELERATOR_LABEL}"] to the model, like nvidia-l4.',
                )

    def _check_zones(self) -> None:
        if is_template(self.zones) or is_template(self.region):
            return
        for zone in self.zones:
            if not zone.startswith(self.region) or zone == self.region:
                raise self._error(f"zone {zone!r} is not in region {self.region}")
        zones = self.zones or (f"{self.region}a",)
        reserved = (
            self.reserved_candidate(name, zone, kind, "RESERVED")
            for name in self.reservations
            for zone in zones
            for kind in self.instance_types
        )
        for candidate in (*self.candidates(zones), *reserved):
            if not is_template(candidate.group) and len(candidate.group) > _MAX_GROUP_NAME:
                raise PoolSpecError(
                    f"Pool {self.name}: the node group's name {candidate.group} is longer than EKS allows.",
                    "Shorten the pool's name.",
                )


def _within(domain: str, domains: Iterable[str]) -> bool:
    return any(domain == each or domain.endswith(f".{each}") for each in domains)
