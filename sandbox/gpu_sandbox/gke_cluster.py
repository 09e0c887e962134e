"""GKE as a whole sandbox has it: one cluster in a Google Cloud project of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_sandbox.errors import ComponentFailed, SandboxError
from gpu_sandbox.managed_cluster import SYSTEM_NODE, ClusterSettings
from gpu_sandbox.workers import Workers

if TYPE_CHECKING:
    from gpu_sandbox.autoscaler import NodeGroups
    from gpu_sandbox.control_plane import ControlPlane
    from gpu_sandbox.google import GoogleCloud, Instance, KubernetesUser
    from gpu_sandbox.machines import Machines
    from gpu_sandbox.nodes import Image, NodeSpec

SYSTEM_POOL = "default-pool"
SYSTEM_MACHINE_TYPE = "e2-standard-8"
DEFAULT_REGION = "us-central1"
DEFAULT_ZONES = ("us-central1-a", "us-central1-b", "us-central1-c")
_PARTITION = "cloud.google.com/gke-gpu-partition-size"
_NO_DEFAULT_PLUGIN = "gke-no-default-nvidia-gpu-device-plugin"
_GIB = 2**30
_PD_BALANCED = 140.0
"""MiB that a boot disk of the default type writes a second at least ("Configure disks to meet performance
requirements")."""


def check_requirements() -> None:
    """SandboxError where Google's library is not installed, which the other platform does without."""
    try:
        found = importlib.util.find_spec("google.cloud.container_v1")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise SandboxError("a sandbox with GKE needs google-cloud-container: pip install 'gpu-sandbox[google]'")


class GkeCluster:
    """Implements `ManagedCluster`. `location` is the region, or one of its zones for a zonal cluster."""

    # GKE gives a pod that asks for a GPU the toleration for its nodes' taint.
    admission_plugins: Sequence[str] = ("ExtendedResourceToleration",)
    # Seen by many (cilium/cilium#13852, openservicemesh/osm#4408, which shows the quota of kube-system too).
    critical_pods_need_quota = True
    shuts_down_at_notice = True
    drains_only_ready_nodes = False

    def __init__(self, settings: ClusterSettings, *, location: str | None) -> None:
        self.name = settings.name
        self.region = settings.region or DEFAULT_REGION
        self.zones = tuple(settings.zones or DEFAULT_ZONES)
        self.location = location or self.region
        self._settings = settings
        self._workers = Workers(settings.clock, name="sandbox-control-plane-restart")
        self._started = False

    google: GoogleCloud
    keyfile: Path
    trusted: Path

    def start(self, *, control_plane: ControlPlane, machines: Machines) -> None:
        from requests.utils import DEFAULT_CA_BUNDLE_PATH

        from gpu_sandbox.google import GoogleCloud
        from gpu_sandbox.pki import write_secret

        self.google = GoogleCloud(
            region=self.region,
            zones=self.zones,
            location=self.location,
            faults=self._settings.faults,
            timings=self._settings.timings or self._settings.pace.google(),
            seed=self._settings.seed,
            events=machines,
            restart_control_plane=partial(self._workers.submit, self._restart, control_plane),
            clock=self._settings.clock,
        )
        self.google.create_cluster(
            self.name,
            endpoint=control_plane.server.removeprefix("https://"),
            certificate_authority=control_plane.ca_data,
            dns_endpoint=control_plane.dns_endpoint,
        )
        self.google.add_node_pool(SYSTEM_POOL, machine_type=SYSTEM_MACHINE_TYPE)
        self.google.start()
        self._started = True
        self.keyfile = control_plane.kubeconfig.parent / "service-account.json"
        write_secret(self.keyfile, json.dumps(self.google.keyfile()).encode())
        # What the public trusts, and the authority that stands for one of them here.
        self.trusted = control_plane.kubeconfig.parent / "trusted.pem"
        self.trusted.write_bytes(
            Path(DEFAULT_CA_BUNDLE_PATH).read_bytes() + control_plane.public_authority.read_bytes()
        )

    def stop(self) -> None:
        if self._started:
            self.google.stop()
        self._workers.stop()

    def _restart(self, control_plane: ControlPlane, seconds: float) -> None:
        """Take the API server away for so long, by the cloud's clock."""
        with contextlib.suppress(ComponentFailed):  # the sandbox is stopped meanwhile
            control_plane.restart_apiserver(seconds, wait=self._workers.pause)

    @property
    def _driver_seconds(self) -> float:
        return 0.0 if self._settings.pace.by_hand else self.google.timings.driver

    def identify(self, token: str) -> KubernetesUser | None:
        if not self._started:
            raise RuntimeError("Google Cloud is still starting")
        return self.google.identify(token)

    def node_joined(self, instance_id: str) -> None:
        """GKE waits for no node here."""

    def complete_drain(self, instance_id: str) -> None:
        self.google.complete_drain(instance_id)

    def interrupt_spot(self, instance: Instance) -> None:
        self.google.preempt(instance.name)

    def recommend_rebalance(self, instance: Instance) -> None:
        raise ValueError("Compute Engine recommends no rebalancing: its spot instances have a notice, and that is all")

    def upgrade_nodes(self, group: str) -> bool:
        return self.google.upgrade_nodes(group)

    def images(self) -> Sequence[Image]:
        """The driver installers that GKE's how-tos apply, and the pause container beside them."""
        from gpu_sandbox.nodes import Image

        installers = ("cos-nvidia-installer*", "gcr.io/cos-cloud/cos-gpu-installer*", "*nvidia-driver-installer*")
        idle = ("sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done")
        return (
            *(Image(pattern=pattern, kind="driver") for pattern in installers),
            *(Image(pattern=pattern, default_command=idle) for pattern in ("*/pause:*", "*/pause@*")),
        )

    def node_spec(self, instance: Instance, *, version: str) -> NodeSpec:
        from gpu_sandbox.google.machine_types import MACHINE_TYPES
        from gpu_sandbox.nodes import NodeSpec
        from gpu_sandbox.nodes.image_transfers import image_rate

        machine = MACHINE_TYPES[instance.machine_type]
        gpu: dict[str, Any] = {}
        if instance.gpu is not None:
            gpu = {
                "gpus": instance.gpus,
                "gpu_product": instance.gpu.product,
                "gpu_memory_mib": instance.gpu.memory_gib * 1024,
                "nvidia_is_apart": True,
                "one_gpu_only": _one_gpu_only(instance.labels),
            }
        return NodeSpec(
            name=instance.node_name,
            labels=instance.labels,
            taints=instance.taints,
            provider_id=f"gce://{instance.project_id}/{instance.zone}/{instance.name}",
            cpus=machine.vcpus,
            memory_bytes=int(machine.memory_gib * _GIB),
            kubernetes_version=version,
            # An add-on of GKE's; it waits for the driver.
            device_plugin_builtin=instance.labels.get(_NO_DEFAULT_PLUGIN) != "true",
            driver_seconds=None if instance.driver == "disabled" else self._driver_seconds,
            image_bytes_per_second=0.0 if instance.streams_images else image_rate(_PD_BALANCED),
            **gpu,
        )

    def system_node(self, *, version: str) -> NodeSpec:
        from gpu_sandbox.nodes import NodeSpec

        zone = self.zones[0]
        return NodeSpec(
            name=SYSTEM_NODE,
            labels={
                "kubernetes.io/hostname": SYSTEM_NODE,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": SYSTEM_MACHINE_TYPE,
                "topology.kubernetes.io/region": self.region,
                "topology.kubernetes.io/zone": zone,
                "cloud.google.com/gke-nodepool": SYSTEM_POOL,
                "cloud.google.com/gke-provisioning": "standard",
            },
            provider_id=f"gce://{self.google.project_id}/{zone}/{SYSTEM_NODE}",
            cpus=8,
            memory_bytes=32 * _GIB,
            kubernetes_version=version,
        )

    def groups(self) -> list[dict[str, Any]]:
        return self.google.describe_groups()

    def objects(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        from gpu_sandbox.autoscaler.provisioning_crd import CRD
        from gpu_sandbox.control_plane import CRITICAL

        scope = {"scopeName": "PriorityClass", "operator": "In", "values": CRITICAL}
        quota = {
            "metadata": {"name": "gcp-critical-pods"},
            "spec": {"hard": {"pods": "1G"}, "scopeSelector": {"matchExpressions": [scope]}},
        }
        return [
            ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD),
            ("/api/v1/namespaces/kube-system/resourcequotas", quota),
        ]

    def node_groups(self) -> NodeGroups:
        from gpu_sandbox.autoscaler.gke_groups import GkeNodeGroups

        return GkeNodeGroups(self.google)

    def env(self) -> dict[str, str]:
        return {
            "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(self.google.connection()),
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.keyfile),
            "GOOGLE_CLOUD_PROJECT": self.google.project_id,
            "GPU_SANDBOX_GOOGLE_ENDPOINT": self.google.endpoint_url,
            "GPU_SANDBOX_PROJECT": self.google.project_id,
            "GPU_SANDBOX_LOCATION": self.location,
            **({"SSL_CERT_FILE": str(self.trusted)} if self.google.dns_takes_users else {}),
        }


def _one_gpu_only(labels: Mapping[str, str]) -> str:
    """What GKE's device plugin answers where several shares are asked for; empty where it gives them.

    (GoogleCloudPlatform/container-engine-accelerators, pkg/gpu/nvidia/gpusharing.)
    """
    refusal = "invalid request for sharing GPU ({}), at most 1 nvidia.com/gpu can be requested on {} nodes"
    match labels.get("cloud.google.com/gke-gpu-sharing-strategy"):
        case "time-sharing":
            return refusal.format("time-sharing", "GPU")
        case "mps" if labels["cloud.google.com/gke-accelerator-count"] != "1" or _PARTITION in labels:
            return refusal.format("MPS", "multi-GPU")
        case _:
            return ""
