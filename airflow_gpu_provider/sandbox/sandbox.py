"""A whole GPU cloud on one machine: composes the control plane, AWS, the nodes and the faults."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.sandbox.build import control_plane_binary
from airflow_gpu_provider.sandbox.control_api import ControlApi
from airflow_gpu_provider.sandbox.control_plane import ControlPlane
from airflow_gpu_provider.sandbox.errors import ComponentFailed
from airflow_gpu_provider.sandbox.faults import Faults

if TYPE_CHECKING:
    from airflow_gpu_provider.sandbox.authenticator import Authenticator
    from airflow_gpu_provider.sandbox.aws import AwsCloud, AwsTimings
    from airflow_gpu_provider.sandbox.machines import Machines
    from airflow_gpu_provider.sandbox.nodes import Image, NodeAgent

SYSTEM_NODE = "sandbox-system"
SYSTEM_GROUP = "system"
SYSTEM_INSTANCE_TYPE = "m6i.2xlarge"
_DEFAULT_ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
_GIB = 2**30
_GPU = "nvidia.com/gpu"


class Sandbox:
    """One EKS-like cluster with its AWS account. A context manager; `stop` leaves no process and no file.

    Args:
        cluster_name: The EKS cluster's name, also the name of its context in the kubeconfig.
        region: AWS region.
        zones: Availability zones, with one subnet each. They must be the region's.
        boot_seconds: From an instance's launch to its Node, while no fault says otherwise.
        images: What image references stand for, before the defaults (`default_images`).
        timings: How long AWS takes; far quicker than AWS by default.
        data_dir: Where everything is written, logs too; kept on stop. By default a temporary folder, which is not.
        progress: Gets a line, now and then, on what the start is doing.
    """

    def __init__(
        self,
        *,
        cluster_name: str = "k8s-ml",
        region: str = "us-west-2",
        zones: Sequence[str] = _DEFAULT_ZONES,
        boot_seconds: float = 3.0,
        images: Sequence[Image] = (),
        timings: AwsTimings | None = None,
        data_dir: Path | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.cluster_name = cluster_name
        self.region = region
        self.zones = tuple(zones)
        self.boot_seconds = boot_seconds
        self.faults = Faults()
        self._images = tuple(images)
        self._timings = timings
        self._data_dir = data_dir
        self.progress = progress or _silent
        self._started = contextlib.ExitStack()

    control_plane: ControlPlane
    aws: AwsCloud
    agent: NodeAgent
    authenticator: Authenticator
    control_api: ControlApi
    data_dir: Path
    kubeconfig: Path
    vpc_id: str
    subnets: Mapping[str, str]
    """Subnet id by zone."""
    node_role_arn: str
    _machines: Machines

    def start(self) -> None:
        """Returns when pods run. The first start on a machine compiles the control plane: minutes.

        Raises a SandboxError, with nothing left running.
        """
        binary = control_plane_binary(self.progress)
        with contextlib.ExitStack() as starting:
            self._start_parts(binary, starting)
            self._started = starting.pop_all()

    def stop(self) -> None:
        """End every process and remove what was written; safe to call twice."""
        self._started.close()

    def __enter__(self) -> Sandbox:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_parts(self, binary: Path, starting: contextlib.ExitStack) -> None:
        self.progress("starting etcd, kube-apiserver, kube-scheduler, kube-controller-manager")
        self.data_dir = self._make_data_dir(starting)
        tokens = _TokenChecks()
        self._start_authenticator(tokens, starting)
        self.control_plane = ControlPlane(
            binary=binary,
            data_dir=self.data_dir / "control-plane",
            token_webhook_url=self.authenticator.url,
            cluster_name=self.cluster_name,
        )
        self.kubeconfig = self.control_plane.kubeconfig
        # Importing and starting AWS takes as long as the control plane does, so it happens meanwhile.
        with ThreadPoolExecutor(1, thread_name_prefix="sandbox-start") as pool:
            control_plane_started = pool.submit(self.control_plane.start)
            starting.callback(self.control_plane.stop)
            self._start_aws(starting)
            tokens.identify = self.aws.identify
            control_plane_started.result()
        self.progress("starting the nodes")
        self._start_nodes(starting)
        self.control_api = ControlApi(self)
        self.control_api.start()
        starting.callback(self.control_api.stop)

    def _make_data_dir(self, starting: contextlib.ExitStack) -> Path:
        if self._data_dir is not None:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            return self._data_dir.absolute()
        folder = Path(tempfile.mkdtemp(prefix="gpu-sandbox-"))
        starting.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _start_authenticator(self, tokens: _TokenChecks, starting: contextlib.ExitStack) -> None:
        from airflow_gpu_provider.sandbox.authenticator import Authenticator

        self.authenticator = Authenticator(tokens)
        self.authenticator.start()
        starting.callback(self.authenticator.stop)

    def _start_aws(self, starting: contextlib.ExitStack) -> None:
        from airflow_gpu_provider.sandbox.aws import AwsCloud, AwsTimings
        from airflow_gpu_provider.sandbox.machines import Machines
        from airflow_gpu_provider.sandbox.nodes import NodeAgent

        self.agent = NodeAgent(
            kubeconfig=self.kubeconfig,
            work_dir=self.data_dir / "nodes",
            images=(*self._images, *default_images()),
            log_file=self.data_dir / "node-agent.log",
        )
        self._machines = Machines(
            control_plane=self.control_plane,
            agent=self.agent,
            faults=self.faults,
            boot_seconds=self.boot_seconds,
            complete_drain=lambda instance_id: self.aws.complete_drain(instance_id),
        )
        self.aws = AwsCloud(
            region=self.region,
            faults=self.faults,
            timings=self._timings or AwsTimings(),
            events=self._machines,
        )
        self.aws.start()
        starting.callback(self.aws.stop)
        network = self.aws.create_cluster(
            self.cluster_name,
            endpoint=self.control_plane.server,
            certificate_authority=self.control_plane.ca_data,
            zones=self.zones,
        )
        self.vpc_id = network.vpc_id
        self.subnets = network.subnets
        self.node_role_arn = network.node_role_arn
        self._make_system_group()

    def _make_system_group(self) -> None:
        """Have a general node group, as every EKS cluster does; its one node is kept apart from the cloud."""
        from airflow_gpu_provider.sandbox.leftovers import aws_client

        aws_client(self.aws, "eks").create_nodegroup(
            clusterName=self.cluster_name,
            nodegroupName=SYSTEM_GROUP,
            scalingConfig={"minSize": 0, "maxSize": 1, "desiredSize": 0},
            instanceTypes=[SYSTEM_INSTANCE_TYPE],
            subnets=[self.subnets[self.zones[0]]],
            nodeRole=self.node_role_arn,
        )

    def _start_nodes(self, starting: contextlib.ExitStack) -> None:
        from airflow_gpu_provider.sandbox.nodes import NodeAgentError

        try:
            self.agent.start()
            starting.callback(self.agent.stop)
            self.agent.add_node(self._system_node())
        except NodeAgentError as error:
            raise ComponentFailed(str(error)) from error
        self._machines.start()
        starting.callback(self._machines.stop)

    def _system_node(self) -> Any:
        from airflow_gpu_provider.sandbox.nodes import NodeSpec

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
            kubernetes_version=self.control_plane.version,
        )

    # What users need

    def env(self) -> dict[str, str]:
        """The variables by which boto3, kubectl, the Kubernetes clients and Airflow talk to this sandbox."""
        key = self.aws.access_key
        aws_connection = {
            "conn_type": "aws",
            "login": key.access_key_id,
            "password": key.secret_access_key,
            "extra": {"region_name": self.region, "endpoint_url": self.aws.endpoint_url},
        }
        kubernetes_connection = {
            "conn_type": "kubernetes",
            "extra": {"kube_config_path": str(self.kubeconfig), "namespace": "default"},
        }
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "AWS_ENDPOINT_URL": self.aws.endpoint_url,
            "AWS_ACCESS_KEY_ID": key.access_key_id,
            "AWS_SECRET_ACCESS_KEY": key.secret_access_key,
            "AWS_DEFAULT_REGION": self.region,
            "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(aws_connection),
            "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(kubernetes_connection),
            "GPU_SANDBOX_URL": self.control_api.url,
            "GPU_SANDBOX_TOKEN": self.control_api.token,
            "GPU_SANDBOX_CLUSTER": self.cluster_name,
            "GPU_SANDBOX_REGION": self.region,
            "GPU_SANDBOX_SUBNETS": json.dumps(dict(self.subnets)),
            "GPU_SANDBOX_NODE_ROLE": self.node_role_arn,
        }

    def restart_apiserver(self, down_seconds: float = 0.0) -> None:
        """Take the API server away for so long; returns when it is ready again."""
        self.control_plane.restart_apiserver(down_seconds)

    def describe(self) -> dict[str, Any]:
        """Plain data on what is there now: components, nodes, pods, groups, faults.

        While the API server is away its part is empty and `api_server` is False.
        """
        cluster = self._describe_cluster()
        return {
            "cluster": self.cluster_name,
            "region": self.region,
            "kubernetes_version": self.control_plane.version,
            "components": self.control_plane.components(),
            **cluster,
            "booting": self._machines.booting(),
            "groups": self._describe_groups(),
            "faults": self.faults.describe(),
        }

    def _describe_groups(self) -> list[dict[str, Any]]:
        """From moto itself: an API call would be counted, and could be failed by a fault."""
        from moto.autoscaling.models import autoscaling_backends

        backend = autoscaling_backends[self.aws.account_id][self.region]
        return [
            {
                "name": group.name,
                "nodegroup": next((t["Value"] for t in group.tags if t["Key"] == "eks:nodegroup-name"), None),
                "desired": group.desired_capacity,
                "max": group.max_size,
                "instances": [
                    {"instance_id": state.instance.id, "state": state.lifecycle_state}
                    for state in list(group.instance_states)
                ],
            }
            for group in list(backend.autoscaling_groups.values())
        ]

    def _describe_cluster(self) -> dict[str, Any]:
        try:
            replies = [self.control_plane.request("GET", f"/api/v1/{kind}") for kind in ("nodes", "pods")]
        except OSError:
            return {"api_server": False, "nodes": [], "pods": []}
        if any(status != 200 for status, _ in replies):
            return {"api_server": False, "nodes": [], "pods": []}
        nodes, pods = (reply["items"] for _, reply in replies)
        return {
            "api_server": True,
            "nodes": [_describe_node(node, pods) for node in nodes],
            "pods": [_describe_pod(pod) for pod in pods],
        }


def default_images() -> tuple[Image, ...]:
    """What the usual image references stand for: this interpreter, this machine's programs, NVIDIA's plugin."""
    from airflow_gpu_provider.sandbox.nodes import Image

    return (
        *(python_image(pattern) for pattern in ("python:*", "nvidia/cuda:*", "cupy/cupy:*")),
        Image(pattern="busybox*"),
        Image(pattern="alpine*"),
        Image(pattern="nvcr.io/nvidia/k8s-device-plugin:*", kind="device-plugin"),
    )


def python_image(pattern: str, *, folder: Path | None = None) -> Image:
    """Images that run with this interpreter and its packages; `folder` is mounted at /app."""
    from airflow_gpu_provider.sandbox.nodes import Image

    return Image(pattern=pattern, folder=folder, path_prefix=str(Path(sys.executable).parent))


class _TokenChecks:
    """Answers for AWS until AWS is up: the authenticator has to be there before it."""

    def __init__(self) -> None:
        self.identify: Callable[[str], Any] | None = None

    def __call__(self, token: str) -> Any:
        if self.identify is None:
            raise RuntimeError("AWS is still starting")
        return self.identify(token)


def _silent(line: str) -> None:
    """For callers who want no progress."""


def _describe_node(node: dict[str, Any], pods: list[dict[str, Any]]) -> dict[str, Any]:
    name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
    conditions = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
    living = [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") == name and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    return {
        "name": name,
        "zone": labels.get("topology.kubernetes.io/zone", ""),
        "instance_type": labels.get("node.kubernetes.io/instance-type", ""),
        "nodegroup": labels.get("eks.amazonaws.com/nodegroup"),
        "market": labels.get("eks.amazonaws.com/capacityType", "").lower().replace("_", "-"),
        "ready": conditions.get("Ready") == "True",
        "cordoned": bool(node["spec"].get("unschedulable")),
        "gpus": int(node["status"].get("allocatable", {}).get(_GPU, 0)),
        "gpus_used": sum(_gpus_of(pod) for pod in living),
        "pods": len(living),
    }


def _describe_pod(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "namespace": pod["metadata"]["namespace"],
        "name": pod["metadata"]["name"],
        "node": pod["spec"].get("nodeName"),
        "phase": pod["status"].get("phase", ""),
        "gpus": _gpus_of(pod),
        "terminating": "deletionTimestamp" in pod["metadata"],
    }


def _gpus_of(pod: dict[str, Any]) -> int:
    return sum(
        int(container.get("resources", {}).get("limits", {}).get(_GPU, 0)) for container in pod["spec"]["containers"]
    )
