"""What a node pool's settings make of each of its instances: GKE's instance template, with labels and taints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from google.cloud.container_v1.types import (
    AcceleratorConfig,
    GPUDriverInstallationConfig,
    NodeConfig,
    NodePool,
    NodeTaint,
    ReservationAffinity,
)

from gpu_sandbox.google.interface import Driver, Instance, Market, Taint
from gpu_sandbox.google.machine_types import ACCELERATORS, MACHINE_TYPES

# GoogleCloudPlatform/cluster-autoscaler, pkg/cloudprovider/gke/labels/system_labels.go. GKE adds it to a Node that has
# joined, sometimes late; here it is there from the beginning.
_PROVISIONING_REQUEST = "autoscaling.gke.io/provisioning-request"
_PREEMPTIBLE_LIFE = 24 * 3600.0
_EFFECTS = {
    NodeTaint.Effect.NO_SCHEDULE: "NoSchedule",
    NodeTaint.Effect.PREFER_NO_SCHEDULE: "PreferNoSchedule",
    NodeTaint.Effect.NO_EXECUTE: "NoExecute",
}
_RESERVED = (ReservationAffinity.Type.SPECIFIC_RESERVATION, ReservationAffinity.Type.ANY_RESERVATION_THEN_FAIL)
_DRIVERS: dict[int, Driver] = {
    GPUDriverInstallationConfig.GPUDriverVersion.INSTALLATION_DISABLED: "disabled",
    GPUDriverInstallationConfig.GPUDriverVersion.LATEST: "latest",
}


@dataclass(frozen=True, kw_only=True)
class Template:
    """How instances of a pool are made."""

    cluster_name: str
    node_pool: str
    machine_type: str
    vcpus: int
    accelerator: str | None
    accelerator_count: int
    """GPUs of the machine; `gpus` are what pods may ask for."""
    gpus: int
    market: Market
    flex_start: bool
    queued: bool
    """Whether instances come only by ProvisioningRequests, which Compute Engine gives as flex-start too."""
    reservation: str | None
    """The reservation, by name, that alone it takes machines of, and that is there; "" for any, None for none."""
    driver: Driver
    is_preemptible: bool
    max_run_seconds: float | None
    streams_images: bool
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]

    @property
    def life_seconds(self) -> float | None:
        """How long an instance lives at most: a preemptible one, for which no limit is taken, for a day."""
        return _PREEMPTIBLE_LIFE if self.is_preemptible else self.max_run_seconds

    def labels_in(self, zone: str) -> dict[str, str]:
        """Of a node in that zone, its own name aside."""
        region = zone.rpartition("-")[0]
        return {
            **self.labels,
            "topology.kubernetes.io/region": region,
            "topology.kubernetes.io/zone": zone,
            "failure-domain.beta.kubernetes.io/region": region,
            "failure-domain.beta.kubernetes.io/zone": zone,
        }

    def instance(
        self, *, instance_id: str, name: str, zone: str, project_id: str, group: str, request: str = ""
    ) -> Instance:
        """`request` is the resize request that it came with, by name, which GKE's label shows on its node."""
        label = {_PROVISIONING_REQUEST: request} if request else {}
        return Instance(
            instance_id=instance_id,
            name=name,
            zone=zone,
            region=zone.rpartition("-")[0],
            project_id=project_id,
            machine_type=self.machine_type,
            market=self.market,
            cluster_name=self.cluster_name,
            node_pool=self.node_pool,
            group=group,
            labels=self.labels_in(zone) | {"kubernetes.io/hostname": name, **label},
            taints=self.taints,
            gpu=ACCELERATORS[self.accelerator] if self.accelerator else None,
            gpus=self.gpus,
            driver=self.driver,
            streams_images=self.streams_images,
        )


def template_of(pool: NodePool, *, cluster_name: str) -> Template:
    """The template of a pool whose settings have been checked."""
    config = pool.config
    machine = MACHINE_TYPES.get(config.machine_type)
    accelerator = config.accelerators[0] if config.accelerators else None
    market: Market = "spot" if config.spot or config.preemptible else "on-demand"
    taints = tuple(Taint(key=taint.key, value=taint.value, effect=_EFFECTS[taint.effect]) for taint in config.taints)
    return Template(
        cluster_name=cluster_name,
        node_pool=pool.name,
        machine_type=config.machine_type,
        vcpus=machine.vcpus if machine else 2,
        accelerator=accelerator.accelerator_type if accelerator else None,
        accelerator_count=int(accelerator.accelerator_count) if accelerator else 0,
        gpus=_gpus_offered(accelerator) if accelerator else 0,
        market=market,
        flex_start=bool(config.flex_start or pool.queued_provisioning.enabled),
        queued=bool(pool.queued_provisioning.enabled),
        reservation=_reservation(config.reservation_affinity),
        driver=_driver(accelerator) if accelerator else "default",
        is_preemptible=bool(config.preemptible),
        max_run_seconds=run_seconds(config) or None,
        streams_images=bool(config.gcfs_config.enabled),
        labels={**dict(config.labels), **_gke_labels(pool.name, config, accelerator)},
        taints=taints,
    )


def _reservation(affinity: ReservationAffinity) -> str | None:
    return "".join(affinity.values[:1]) if affinity.consume_reservation_type in _RESERVED else None


def run_seconds(config: NodeConfig) -> float:
    """How long the pool's machines may run; 0 where nothing is said."""
    duration = NodeConfig.pb(config).max_run_duration
    return float(duration.seconds) + float(duration.nanos) / 1e9


def _gpus_offered(accelerator: AcceleratorConfig) -> int:
    parts = ACCELERATORS[accelerator.accelerator_type].partitions.get(accelerator.gpu_partition_size, 1)
    clients = int(accelerator.gpu_sharing_config.max_shared_clients_per_gpu) or 1
    return int(accelerator.accelerator_count) * parts * clients


def _driver(accelerator: AcceleratorConfig) -> Driver:
    """Unspecified installs the default one, as GKE does since 1.30.1."""
    return _DRIVERS.get(accelerator.gpu_driver_installation_config.gpu_driver_version, "default")


def _gke_labels(pool: str, config: NodeConfig, accelerator: AcceleratorConfig | None) -> dict[str, str]:
    labels = {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": config.machine_type,
        "beta.kubernetes.io/instance-type": config.machine_type,
        "cloud.google.com/gke-nodepool": pool,
        "cloud.google.com/machine-family": config.machine_type.partition("-")[0],
        "cloud.google.com/gke-os-distribution": "ubuntu" if "UBUNTU" in config.image_type.upper() else "cos",
        "cloud.google.com/gke-container-runtime": "containerd",
        "cloud.google.com/gke-provisioning": "spot"
        if config.spot
        else "preemptible"
        if config.preemptible
        else "flex-start"
        if config.flex_start
        else "standard",
    }
    if config.flex_start:
        labels["cloud.google.com/gke-flex-start"] = "true"
    if config.spot:
        labels["cloud.google.com/gke-spot"] = "true"
    if config.preemptible:
        labels["cloud.google.com/gke-preemptible"] = "true"
    return labels | (_gpu_labels(accelerator) if accelerator else {})


def _gpu_labels(accelerator: AcceleratorConfig) -> dict[str, str]:
    labels = {
        "cloud.google.com/gke-accelerator": accelerator.accelerator_type,
        "cloud.google.com/gke-accelerator-count": str(accelerator.accelerator_count),
        "cloud.google.com/gke-gpu-driver-version": _driver(accelerator),
    }
    if accelerator.gpu_partition_size:
        labels["cloud.google.com/gke-gpu-partition-size"] = accelerator.gpu_partition_size
    sharing = accelerator.gpu_sharing_config
    if sharing.max_shared_clients_per_gpu:
        strategy = sharing.gpu_sharing_strategy.name.lower().replace("_", "-")
        labels["cloud.google.com/gke-gpu-sharing-strategy"] = strategy
        labels["cloud.google.com/gke-max-shared-clients-per-gpu"] = str(sharing.max_shared_clients_per_gpu)
    return labels
