"""EKS as a whole sandbox has it: one cluster in an AWS account of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_sandbox.managed_cluster import SYSTEM_NODE, ClusterSettings

if TYPE_CHECKING:
    from gpu_sandbox.autoscaler import NodeGroups
    from gpu_sandbox.aws import AwsCloud, Identity, Instance
    from gpu_sandbox.control_plane import ControlPlane
    from gpu_sandbox.machines import Machines
    from gpu_sandbox.nodes import Image, NodeSpec

SYSTEM_GROUP = "system"
SYSTEM_INSTANCE_TYPE = "m6i.2xlarge"
DEFAULT_REGION = "us-west-2"
DEFAULT_ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
_GIB = 2**30


class EksCluster:
    """Implements `ManagedCluster`."""

    admission_plugins: Sequence[str] = ()
    critical_pods_need_quota = False
    shuts_down_at_notice = False
    drains_only_ready_nodes = True

    def __init__(self, settings: ClusterSettings, *, account_id: str) -> None:
        self.name = settings.name
        self.region = settings.region or DEFAULT_REGION
        self.zones = tuple(settings.zones or DEFAULT_ZONES)
        self._settings = settings
        self._account_id = account_id
        self._started = False

    aws: AwsCloud
    vpc_id: str
    subnets: Mapping[str, str]
    """Subnet id by zone."""
    node_role_arn: str
    cloud_config: Path

    def start(self, *, control_plane: ControlPlane, machines: Machines) -> None:
        from gpu_sandbox.aws import AwsCloud

        self.aws = AwsCloud(
            region=self.region,
            account_id=self._account_id,
            faults=self._settings.faults,
            timings=self._settings.timings or self._settings.pace.aws(),
            events=machines,
            seed=self._settings.seed,
            clock=self._settings.clock,
        )
        self.aws.start()
        self._started = True
        network = self.aws.create_cluster(
            self.name,
            endpoint=control_plane.server,
            certificate_authority=control_plane.ca_data,
            zones=self.zones,
        )
        self.vpc_id = network.vpc_id
        self.subnets = network.subnets
        self.node_role_arn = network.node_role_arn
        self._make_system_group()
        self.cloud_config = control_plane.kubeconfig.parent / "cloud.conf"
        self.cloud_config.write_text(_cloud_config(self.region, self.aws.endpoint_url))

    def _make_system_group(self) -> None:
        """Have a general node group, as every EKS cluster does; its one node is kept apart from the cloud."""
        from gpu_sandbox.aws.observer import aws_client

        aws_client(self.aws, "eks").create_nodegroup(
            clusterName=self.name,
            nodegroupName=SYSTEM_GROUP,
            scalingConfig={"minSize": 0, "maxSize": 1, "desiredSize": 0},
            instanceTypes=[SYSTEM_INSTANCE_TYPE],
            subnets=list(self.subnets.values()),
            nodeRole=self.node_role_arn,
        )

    def stop(self) -> None:
        if self._started:
            self.aws.stop()

    def identify(self, token: str) -> Identity | None:
        if not self._started:
            raise RuntimeError("AWS is still starting")
        return self.aws.identify(token)

    def node_joined(self, instance_id: str) -> None:
        self.aws.node_joined(instance_id)

    def complete_drain(self, instance_id: str) -> None:
        self.aws.complete_drain(instance_id)

    def interrupt_spot(self, instance: Instance) -> None:
        self.aws.interrupt_spot(instance.instance_id)

    def recommend_rebalance(self, instance: Instance) -> None:
        self.aws.recommend_rebalance(instance.instance_id)

    def upgrade_nodes(self, group: str) -> bool:
        raise ValueError("EKS upgrades the nodes of a group when it is asked to, and never by itself")

    def images(self) -> Sequence[Image]:
        return ()

    def node_spec(self, instance: Instance, *, version: str) -> NodeSpec:
        from gpu_sandbox.aws.node_images import GP3_MIB, node_image
        from gpu_sandbox.nodes import NodeSpec
        from gpu_sandbox.nodes.image_transfers import image_rate

        kind, catalogue = instance.instance_type, self.aws.catalogue
        hardware: dict[str, Any] = {}
        if gpus := catalogue.nvidia_gpus(kind):
            hardware = {"gpus": gpus.count, "gpu_product": gpus.product, "gpu_memory_mib": gpus.memory_mib}
        if instance.disk_gib:
            hardware["disk_bytes"] = instance.disk_gib * _GIB
        image = node_image(instance.ami_type, kind, kubernetes=version)
        return NodeSpec(
            name=instance.node_name,
            labels=instance.labels,
            taints=instance.taints,
            provider_id=f"aws:///{instance.zone}/{instance.instance_id}",
            cpus=catalogue.vcpus(kind),
            memory_bytes=catalogue.memory_bytes(kind),
            efa_interfaces=instance.efa_interfaces,
            kubernetes_version=version,
            os_image=image.system,
            device_plugin_builtin=image.has_plugin,
            driver_seconds=0.0 if image.has_driver and not self.aws.has_broken_image(instance) else None,
            image_bytes_per_second=image_rate(instance.disk_mib_per_second or GP3_MIB),
            **hardware,
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
                "node.kubernetes.io/instance-type": SYSTEM_INSTANCE_TYPE,
                "topology.kubernetes.io/region": self.region,
                "topology.kubernetes.io/zone": zone,
                "eks.amazonaws.com/nodegroup": SYSTEM_GROUP,
                "eks.amazonaws.com/capacityType": "ON_DEMAND",
            },
            provider_id=f"aws:///{zone}/i-00000000000000000",
            cpus=8,
            memory_bytes=32 * _GIB,
            kubernetes_version=version,
        )

    def groups(self) -> list[dict[str, Any]]:
        return self.aws.describe_groups()

    def objects(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        return []

    def node_groups(self) -> NodeGroups:
        from gpu_sandbox.autoscaler.aws_groups import AwsNodeGroups

        return AwsNodeGroups(self.aws, cluster_name=self.name)

    def env(self) -> dict[str, str]:
        key = self.aws.access_key
        connection = {
            "conn_type": "aws",
            "login": key.access_key_id,
            "password": key.secret_access_key,
            "extra": {"region_name": self.region, "endpoint_url": self.aws.endpoint_url},
        }
        return {
            "AWS_ENDPOINT_URL": self.aws.endpoint_url,
            "AWS_ACCESS_KEY_ID": key.access_key_id,
            "AWS_SECRET_ACCESS_KEY": key.secret_access_key,
            "AWS_DEFAULT_REGION": self.region,
            "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(connection),
            "GPU_SANDBOX_SUBNETS": json.dumps(dict(self.subnets)),
            "GPU_SANDBOX_NODE_ROLE": self.node_role_arn,
            "GPU_SANDBOX_CLOUD_CONFIG": str(self.cloud_config),
        }


def _cloud_config(region: str, endpoint_url: str) -> str:
    """Where AWS is, for cluster-autoscaler, which does not look at AWS_ENDPOINT_URL."""
    return "\n".join(
        f'[ServiceOverride "{service}"]\nService = {service}\nRegion = {region}\nURL = {endpoint_url}\n'
        f"SigningRegion = {region}\n"
        for service in ("autoscaling", "ec2", "eks")
    )
