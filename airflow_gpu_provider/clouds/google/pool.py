"""GkeGpuPool: GPU nodes of a Google Kubernetes Engine cluster, in node pools."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final, Literal, Self

from airflow_gpu_provider.accelerators import GpusOfMachine, NodeSize
from airflow_gpu_provider.clouds.google import machine_types, rules, series
from airflow_gpu_provider.clouds.google.rules import (
    Accelerator,
    GkeDisk,
    GpuSharing,
    Images,
    ReservationAffinity,
    ShieldedInstanceConfig,
)
from airflow_gpu_provider.pools.candidates import Candidate, Market
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.on_nodes import NodeDaemon, NodesToCome
from airflow_gpu_provider.pools.values import (
    Taint,
    are_some_of,
    as_constant,
    as_constants,
    as_duration,
    as_tuple,
    is_template,
)

GPU_TAINT = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")
"""GKE adds it to node pools with GPUs, unless all node pools of the cluster have them; Ensure does in its place."""

DRIVERS = ("default", "latest", "disabled", "daemonset")
_WITHOUT_GKES_PLUGIN = "gke-no-default-nvidia-gpu-device-plugin"
"""The label of nodes that have no device plugin from GKE: the GPU Operator brings its own."""

LOCATION_POLICIES = ("any", "balanced")

_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_LOCATION = re.compile(r"([a-z]+-[a-z]+\d+)(-(?:ai\d+)?[a-z])?")  # AI zones too, like us-central1-ai1a
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
PREEMPTIBLE: Final = "PREEMPTIBLE"
"""A spec's other word for SPOT: Compute Engine's older kind, at the same price, which ends after 24 hours and takes no
end of its own ("Preemptible VM instances"). Its machines are spot here."""

_MARKETS = ("ON_DEMAND", "SPOT", PREEMPTIBLE)
# The fields that shape a node pool; the driver and GPU sharing also determine what its nodes offer.
SHAPE = (
    "location_policy",
    "node_locations",
    "capacity_types",
    "max_run_duration",
    "disk",
    "image_type",
    "service_account",
    "tags",
    "resource_labels",
    "exclude_upgrades",
    "reservation_affinity",
    "flex_start",
    "queued_provisioning",
    "shielded_instance_config",
    "images",
    "placement",
)
_MARGIN = timedelta(minutes=15)


@dataclass(frozen=True, kw_only=True, eq=True)
class GkeGpuPool(GpuPool):
    """GPU nodes of a Google Kubernetes Engine cluster.

    There is one node pool of GKE for each zone, machine type and capacity type, so that the order of preference is
    the one given here. Candidates are tried in order: every zone for the first machine type on the first capacity
    type, then the next machine type, then the next capacity type.

    With `manage="scale"` the node pools are external: those that `node_pools` names, in order of preference, zone by
    zone. Leave out the fields that shape them: from node_locations and capacity_types on, those of machines, disks,
    images, labels, upgrades and how machines are obtained.

    Args: Needed
        project_id: The Google Cloud project.
        location: The cluster's zone or region, like "us-central1-a" or "us-central1".
        cluster_name: The GKE cluster.

    Args: Machines
        machine_types: Compute Engine machine types in order of preference: with GPUs of their own (G2, G4, A2, A3, A4),
            or N1.
            With manage="scale" they may be left out, and a run then gives nodes= instead of gpus=; if they are given,
            the node pools' types have to be among them.
        accelerator: The GPUs to attach to N1 machines, like `{"type": "nvidia-tesla-t4", "count": 2}`; count is 1 by
            default. Others have theirs built in. With both it describes a machine type that is newer than this
            package: GKE then checks it.
        node_locations: Zones, in order of preference. Default: those of the cluster.
        capacity_types: "ON_DEMAND" and "SPOT", in order of preference. Default on-demand only. "PREEMPTIBLE" means
            "SPOT": the price is the same, and such a machine has no end after 24 hours.
        reservation_affinity: Which reservations machines come from, in the API's words (ReservationAffinity):
            `{"consume_reservation_type": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name",
            "values": ["my-reservation"]}`, or ANY_RESERVATION, ANY_RESERVATION_THEN_FAIL or NO_RESERVATION alone. A
            reservation is of one zone: name that in node_locations. Default: GKE's own choice.
        flex_start: Have GKE obtain the machines by flex-start, which waits for capacity and provides it for seven days
            at most: with scaling="autoscaler" only. Default False.
        queued_provisioning: With flex_start: have GKE obtain all machines of a gang at once, or none, by a
            ProvisioningRequest, which Kueue makes for a task with queue_name: see docs/gke.md. Default False.
        placement: "compact": a node pool's machines stand close together, for gangs; not for N1. Default: anywhere.
        max_run_duration: How long a machine may live from its creation, at most 120 days; after that Google Cloud
            deletes it, even with pods on it, and even if Airflow is down. Default: max_runtime and 15 minutes, so that
            no machine outlives its run; no limit where min_nodes keeps machines indefinitely.

    Args: GPUs
        driver: "default" or "latest" (with COS only): GKE installs NVIDIA's driver; "daemonset": a DaemonSet does,
            which InstallDevicePluginOperator applies; "disabled": you install it. Default "default".
        gpu_sharing: Several pods on one GPU: `{"strategy": "TIME_SHARING" | "MPS", "max_shared_clients": 4}`. A pod
            then asks for one GPU, which is one share; for several only with MPS, on machines with one GPU.
        gpu_partition_size: Parts of a GPU for pods, by NVIDIA's profiles, like "1g.5gb".

    Args: Disk, image and boot
        disk: The boot disk, `{"size": 200, "type": "pd-balanced"}` or one of them: GB, and a type from which all of the
            machine_types boot. Default 100 GB, and GKE's type for each machine type.
        image_type: Node image. Default COS_CONTAINERD.
        images: How container images get to the nodes. `{"streaming": True}` has containers start before their images
            are all there: for images in Artifact Registry, nodes with COS, and the Container File System API enabled.
            With `"secondary_boot_disks": ["projects/ml/global/images/train-cache"]` besides, nodes have those of disk
            images from the start. Default: they are pulled.
        shielded_instance_config: `{"enable_secure_boot": True, "enable_integrity_monitoring": True}`, or one of them;
            organization policies may require it. Default: GKE's own, which is no secure boot.
        exclude_upgrades: Keep GKE from upgrading the nodes by itself, until the end of support of their version: in a
            release channel it does so at any time, and lets a training drain for an hour at most. Default True. With
            False, give the cluster a maintenance window outside the hours of your runs.

    Args: Network and identity
        endpoint: "internal": reach the API server by its internal address, which must exist. "dns": by its DNS name.
            Default: by the address that GKE names as the cluster's endpoint.
        tags: Network tags of the machines.
        service_account: The nodes' service account. Default: the cluster's own choice.
        resource_labels: Labels of the machines, for billing.
        gcp_conn_id: Airflow connection. Default google_cloud_default.
        impersonation_chain: Service account to act as, or a chain of them, as in the Google provider.

    Args: Groups of others, and autoscalers
        node_pools: manage="scale": node pools of the cluster, by name.
        location_policy: With scaling="autoscaler": "balanced" or "any", as in GKE. Default "any": GKE's own choice
            for spot, and the better one for getting a GPU.

    The other arguments are GpuPool's. GKE taints GPU nodes by itself, and that taint cannot be left out.
    """

    kind: ClassVar[str] = "gke"
    placed_by: ClassVar[tuple[str, ...]] = (
        *(*GpuPool.placed_by, "machine_types", "accelerator", "capacity_types"),
        *("gpu_sharing", "gpu_partition_size"),
    )
    types_field: ClassVar[str] = "machine_types"
    unknown_type: ClassVar[str] = "g99-standard-4"
    allowed_by: ClassVar[tuple[str, ...]] = (
        *GpuPool.allowed_by,
        *("machine_types", "capacity_types", "node_locations"),
    )
    cluster_fields: ClassVar[tuple[str, ...]] = (
        *("cluster_name", "location", "project_id", "gcp_conn_id"),
        *("impersonation_chain", "endpoint"),
    )
    private_fields: ClassVar[Mapping[str, str]] = {
        "cluster_name": "cluster",
        "project_id": "project",
        "gcp_conn_id": "connection",
        "service_account": "service-account",
    }
    __hash__ = GpuPool.__hash__  # a dataclass would generate one, which fails on fields that are dictionaries

    project_id: str
    location: str
    cluster_name: str
    machine_types: Sequence[str] = ()
    accelerator: Accelerator = field(default_factory=Accelerator)
    node_locations: Sequence[str] = ()
    capacity_types: Sequence[Market | Literal["PREEMPTIBLE"]] = ("ON_DEMAND",)
    taints: Sequence[str] = (str(GPU_TAINT),)
    driver: str = "default"
    gpu_sharing: GpuSharing = field(default_factory=GpuSharing)
    gpu_partition_size: str | None = None
    max_run_duration: timedelta | None = None
    disk: GkeDisk = field(default_factory=GkeDisk)
    image_type: str = "COS_CONTAINERD"
    service_account: str | None = None
    tags: Sequence[str] = ()
    resource_labels: dict[str, str] = field(default_factory=dict)
    exclude_upgrades: bool = True
    reservation_affinity: ReservationAffinity = field(default_factory=ReservationAffinity)
    flex_start: bool = False
    queued_provisioning: bool = False
    shielded_instance_config: ShieldedInstanceConfig = field(default_factory=ShieldedInstanceConfig)
    images: Images = field(default_factory=Images)
    placement: str | None = None
    node_pools: Sequence[str] = ()
    location_policy: str = "any"
    endpoint: str | None = None
    gcp_conn_id: str = "google_cloud_default"
    impersonation_chain: str | Sequence[str] | None = None

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def spot_labels(self) -> Mapping[str, tuple[str, ...]]:
        # "Run fault-tolerant workloads at lower costs with Spot VMs", and "... with preemptible VMs", in GKE's guides.
        return {"cloud.google.com/gke-spot": (), "cloud.google.com/gke-preemptible": ()}

    @property
    def platform_path(self) -> str:
        if self.manage == "scale":
            return "airflow_gpu_provider.clouds.google.external_platform:ExternalGkePlatform"
        return "airflow_gpu_provider.clouds.google.owned_platform:OwnedGkePlatform"

    @property
    def remains_path(self) -> str:
        return "airflow_gpu_provider.clouds.google.remains:remains"

    @property
    def region(self) -> str:
        """The region that the location is, or is in."""
        match = _LOCATION.fullmatch(self.location)
        return match[1] if match else self.location

    @property
    def gpus_per_node(self) -> int | None:
        gpus = [self._devices(name) for name in self.machine_types]
        return None if None in gpus else min((each for each in gpus if each is not None), default=None)

    @property
    def node_sizes(self) -> dict[str, NodeSize | None]:
        devices = {name: self._devices(name) for name in self.machine_types}
        return {name: machine_types.gke_node_size(name, gpus) for name, gpus in devices.items()}

    @property
    def most_gpus_of_a_pod(self) -> int | None:
        """One, where GPUs are shared; GKE's device plugin gives several shares only of one GPU alone, and by MPS."""
        gpus = {self.accelerator_of(name)[1] for name in self.machine_types}
        is_of_one = self.gpu_sharing.get("strategy") == "MPS" and gpus <= {1} and not self.gpu_partition_size
        return 1 if self.gpu_sharing and not is_of_one else None

    @property
    def shares_gpus(self) -> bool:
        return bool(self.gpu_sharing)

    @property
    def needs_host_ipc(self) -> bool:
        """Whether pods need the host's IPC namespace: MPS's clients and its daemon talk through /dev/shm."""
        return self.gpu_sharing.get("strategy") == "MPS"

    def gpus_of(self, machine_type: str) -> GpusOfMachine | None:
        accelerator, gpus = self.accelerator_of(machine_type)
        gpu = machine_types.gpu_of_accelerator(accelerator)
        return GpusOfMachine(gpu=gpu, gpus=gpus) if gpu else None

    @property
    def nodes_to_come(self) -> NodesToCome:
        found = super().nodes_to_come
        drivers = {
            "daemonset": "InstallDevicePluginOperator installs it by a DaemonSet",
            "disabled": found.driver,
        }
        return replace(
            found,
            labels={**found.labels, "topology.kubernetes.io/region": self.region},
            driver=drivers.get(self.driver, f"GKE installs it ({self.driver})"),
            platform="" if self.node_labels.get(_WITHOUT_GKES_PLUGIN) == "true" else "GKE",
        )

    def driver_installer(self, image: str | None = None) -> NodeDaemon | None:
        from airflow_gpu_provider.clouds.google.driver_installer import driver_installer

        return driver_installer(self.image_type, image) if self.driver == "daemonset" else None

    @property
    def how_to_start_sooner(self) -> str:
        is_given = self.images.get("streaming") or self.manage != "full"
        return "" if is_given else "images={'streaming': True} starts containers before their images are all there"

    @property
    def how_to_find_libraries(self) -> str:
        return (
            "GKE mounts the driver's libraries at /usr/local/nvidia/lib64: set LD_LIBRARY_PATH to that in env_vars,"
            " unless the image has it, as NVIDIA's have. If it is set:"
        )

    @property
    def provisioning_class(self) -> str:
        return rules.QUEUED_CLASS if self.queued_provisioning is True else ""

    def check_nodes_come(self, *, nodes: int, gpus: int, queue: str | None, annotations: Collection[str] = ()) -> None:
        rules.check_nodes_come(self, nodes=nodes, gpus=gpus, queue=queue, annotations=annotations)

    @property
    def gpu_products(self) -> tuple[str, ...]:
        known = (machine_types.gpu_of_accelerator(self.accelerator_of(name)[0]) for name in self.machine_types)
        return tuple(dict.fromkeys(gpu.name for gpu in known if gpu))

    @property
    def parsed_taints(self) -> tuple[Taint, ...]:
        own = super().parsed_taints
        gkes = (GPU_TAINT, rules.QUEUED_TAINT) if self.queued_provisioning else (GPU_TAINT,)
        return (*(taint for taint in gkes if taint not in own), *own)

    @property
    def console_url(self) -> str:
        cluster = f"{self.location}/{self.cluster_name}"
        return f"https://console.cloud.google.com/kubernetes/clusters/details/{cluster}/nodes?project={self.project_id}"

    @property
    def cluster_identity(self) -> str:
        chain = as_tuple(self.impersonation_chain) or ()
        return f"gke/{self.gcp_conn_id}/{','.join(chain)}/{self.project_id}/{self.location}/{self.cluster_name}"

    @property
    def cluster_arguments(self) -> dict[str, Any]:
        """As GKEStartPodOperator has them: a word for the endpoint is two booleans there."""
        given = super().cluster_arguments
        endpoint = given.pop("endpoint")
        if is_template(endpoint):
            return {**given, "use_internal_ip": endpoint, "use_dns_endpoint": endpoint}
        return {**given, "use_internal_ip": endpoint == "internal", "use_dns_endpoint": endpoint == "dns"}

    @property
    def node_lifetime(self) -> timedelta | None:
        """How long Google Cloud lets a machine live; None: without a limit."""
        if self.max_run_duration is not None:
            return self.max_run_duration
        derived = self.max_runtime + _MARGIN
        return None if self.min_nodes or derived > rules.LONGEST_RUN else derived

    @property
    def ends_by_itself(self) -> bool:
        """Whether its machines have a `node_lifetime`; those of external node pools have what their owner gave them."""
        return self.node_lifetime is not None and self.manage == "full"

    @property
    def is_reserved(self) -> bool:
        """Whether machines come only from a reservation."""
        return self.reservation_affinity.get("consume_reservation_type") in rules.RESERVED_ONLY

    def accelerator_of(self, machine_type: str) -> tuple[str, int]:
        """Return the accelerator type of a machine of this type, and how many it has."""
        machine = machine_types.gce_machine_type(machine_type)
        if machine and machine.gpu:
            return machine.gpu.accelerator, machine.gpus
        return self.accelerator.get("type", ""), self.accelerator.get("count", 1)

    @property
    def markets(self) -> tuple[Market, ...]:
        return tuple(dict.fromkeys("SPOT" if name == PREEMPTIBLE else name for name in self.capacity_types))

    @property
    def zones(self) -> Sequence[str]:
        return self.node_locations

    @property
    def cluster_region(self) -> str:
        return self.region

    @property
    def how_to_widen(self) -> str:
        if self.is_reserved:
            return "Enlarge the reservation that reservation_affinity names, or free machines of it"
        if self.manage == "scale":
            return "Name more of the cluster's node pools in the pool's node_pools"
        if self.queued_provisioning:
            return "Add machine_types to the pool: each request waits in the one zone that GKE has chosen for it"
        return "Add node_locations, machine_types or capacity_types to the pool"

    @property
    def groups_of_others(self) -> Mapping[str, Sequence[str]]:
        return {"node_pools": self.node_pools}

    @property
    def spot_notice(self) -> int:
        """Half of Compute Engine's 30 seconds; GKE's kubelet keeps the rest ("Preemptible VMs", "Spot VMs")."""
        return 15

    def for_one_night(self, name: str, night: timedelta) -> Self:
        """A machine's life follows from max_runtime, as it does by default."""
        return replace(super().for_one_night(name, night), max_run_duration=None)

    def with_unknown_type_first(self, name: str) -> Self:
        """The type is described by the first real one's GPUs, and types with other GPUs would contradict it."""
        kind, count = has = self.accelerator_of(self.machine_types[0])
        types = (self.unknown_type, *(each for each in self.machine_types if self.accelerator_of(each) == has))
        return replace(self, name=name, machine_types=types, accelerator={"type": kind, "count": count})

    def candidates(self, zones: Iterable[str]) -> tuple[Candidate, ...]:
        return self.preferences.candidates(zones, partial(rules.node_pool_name, self.name, self.region))

    def _devices(self, machine_type: str) -> int | None:
        """Return how many nvidia.com/gpu a node of that type offers, shared and partitioned; None: not known."""
        accelerator, gpus = self.accelerator_of(machine_type)
        parts: int | None = 1
        if self.gpu_partition_size:
            gpu = machine_types.gpu_of_accelerator(accelerator)
            parts = machine_types.gke_partitions_of(gpu).get(self.gpu_partition_size) if gpu else None
        return None if parts is None else gpus * parts * int(self.gpu_sharing.get("max_shared_clients", 1))

    def _group_fields(self) -> dict[str, Any]:
        lifetime = self.node_lifetime
        seconds = lifetime.total_seconds() if lifetime else None
        not_in_groups = ("endpoint", "gcp_conn_id", "impersonation_chain")
        fields = {key: value for key, value in super()._group_fields().items() if key not in not_in_groups}
        return {**fields, "capacity_types": list(self.markets), "max_run_duration": seconds}

    # -- validation ------------------------------------------------------------------------------------------

    def _coerce(self) -> None:
        super()._coerce()
        if self.impersonation_chain is not None and not isinstance(self.impersonation_chain, str):
            self._set("impersonation_chain", as_tuple(self.impersonation_chain))
        self._set("capacity_types", as_constants(self.capacity_types))
        if isinstance(prices := self.price_per_hour, dict) and PREEMPTIBLE in prices:
            self._set("price_per_hour", {"SPOT" if key == PREEMPTIBLE else key: prices[key] for key in prices})
        self._convert(as_duration, "max_run_duration")
        for name, key in (("gpu_sharing", "strategy"), ("reservation_affinity", "consume_reservation_type")):
            part = getattr(self, name)
            if isinstance(part, dict) and isinstance(part.get(key), str) and not is_template(part[key]):
                self._set(name, {**part, key: as_constant(part[key])})

    def _validate(self) -> None:
        super()._validate()
        self._check("project_id", _PROJECT.fullmatch, "the id of a Google Cloud project")
        self._check("location", _LOCATION.fullmatch, "a zone or a region, like us-central1-a or us-central1")
        self._check("cluster_name", bool, "the name of a GKE cluster")
        self._check(
            "capacity_types", partial(are_some_of, _MARKETS), "some of ON_DEMAND, SPOT (or PREEMPTIBLE), in order"
        )
        self._check("endpoint", (None, "internal", "dns").__contains__, '"internal" or "dns", or left out')
        self._check("driver", DRIVERS.__contains__, f"one of {', '.join(DRIVERS)}")
        self._check_manage(SHAPE)
        self._check("scaling", ("direct", "autoscaler").__contains__, '"direct" or "autoscaler"')
        self._check("location_policy", LOCATION_POLICIES.__contains__, f"one of {', '.join(LOCATION_POLICIES)}")
        self._check("resource_labels", _are_resource_labels, "Google Cloud labels: lower-case letters, digits, _ and -")
        self._check_zones()
        self._refuse(self._problems())
        self._check_taints()

    def _check_zones(self) -> None:
        if is_template(self.node_locations) or is_template(self.location):
            return
        for zone in self.node_locations:
            match = _LOCATION.fullmatch(zone)
            if not match or not match[2] or match[1] != self.region:
                raise self._error(f"{zone!r} in node_locations is not a zone of {self.region}")

    def _problems(self) -> rules.Problems:
        """Yield what cannot work by the rules of machines; a rule waits until its fields are rendered."""
        for names, judge in _RULES:
            if not is_template([getattr(self, name) for name in names]):
                yield from judge(self)

    def _check_taints(self) -> None:
        if is_template(self.taints):
            return
        for taint in super().parsed_taints:
            if (taint.key, taint.effect) == (GPU_TAINT.key, GPU_TAINT.effect) and taint != GPU_TAINT:
                raise self._error(
                    f"taint {taint} contradicts GKE, which taints GPU nodes with {GPU_TAINT}", "Leave it out."
                )


_RULES: tuple[tuple[tuple[str, ...], Callable[[GkeGpuPool], Iterable[tuple[str, str]]]], ...] = (
    (("image_type",), lambda pool: rules.image_problems(pool.image_type)),
    (("disk", "machine_types"), lambda pool: series.boot_disk_problems(pool.disk.get("type"), pool.machine_types)),
    (("disk",), lambda pool: rules.disk_size_problems(pool.disk.get("size"))),
    (("tags",), lambda pool: rules.tag_problems(pool.tags)),
    (("images",), lambda pool: rules.start_problems(pool.images, pool.image_type)),
    (
        ("placement", "machine_types", "max_nodes"),
        lambda pool: series.placement_problems(pool.placement, pool.machine_types, pool.max_nodes),
    ),
    ((), lambda pool: rules.label_problems(pool.node_labels if pool.manage == "full" else ())),
    (
        ("machine_types", "flex_start"),
        lambda pool: series.machine_problems(pool.machine_types, flex_start=pool.flex_start),
    ),
    (
        ("machine_types", "accelerator"),
        lambda pool: rules.machine_problems(pool.machine_types, pool.accelerator),
    ),
    (("driver",), lambda pool: rules.driver_problems(pool.driver, pool.image_type, pool.gpu_partition_size)),
    (
        ("gpu_partition_size", "machine_types", "accelerator"),
        lambda pool: rules.partition_problems(
            pool.gpu_partition_size, {name: pool.accelerator_of(name)[0] for name in pool.machine_types}
        ),
    ),
    (("gpu_sharing",), lambda pool: rules.sharing_problems(pool.gpu_sharing)),
    (
        ("max_run_duration", "max_runtime"),
        lambda pool: rules.lifetime_problems(pool.max_run_duration, pool.max_runtime),
    ),
    (
        ("queued_provisioning", "flex_start"),
        lambda pool: (
            rules.queued_problems(flex_start=pool.flex_start, sharing=pool.gpu_sharing, placement=pool.placement)
            if pool.queued_provisioning
            else ()
        ),
    ),
    (
        ("reservation_affinity", "capacity_types"),
        lambda pool: rules.reservation_problems(pool.reservation_affinity, pool.capacity_types),
    ),
    (
        (
            *("flex_start", "scaling", "location_policy", "reservation_affinity", "capacity_types"),
            *("max_run_duration", "max_runtime", "min_nodes"),
        ),
        lambda pool: (
            rules.flex_start_problems(
                scaling=pool.scaling,
                location_policy=pool.location_policy,
                affinity=pool.reservation_affinity,
                capacity_types=pool.capacity_types,
                lifetime=pool.node_lifetime,
                min_nodes=pool.min_nodes,
            )
            if pool.flex_start
            else ()
        ),
    ),
)
"""The rules of machines in their order: the fields that have to be rendered for each, and the rule."""


def _are_resource_labels(labels: Any) -> bool:
    return isinstance(labels, dict) and all(
        isinstance(value, str) and _LABEL_KEY.fullmatch(str(key)) and _LABEL_VALUE.fullmatch(value)
        for key, value in labels.items()
    )
