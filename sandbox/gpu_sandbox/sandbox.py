"""A whole GPU cloud on one machine: composes the control plane, the cloud, the nodes and the faults."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from gpu_sandbox.build import control_plane_binary
from gpu_sandbox.clock import ClockName, SystemClock
from gpu_sandbox.control_api import ControlApi
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.engines import EngineName, Engines, compile_engines, with_needed
from gpu_sandbox.errors import ComponentFailed
from gpu_sandbox.faults import Faults
from gpu_sandbox.managed_cluster import SYSTEM_NODE, ClusterSettings, ManagedCluster, Platform
from gpu_sandbox.manual_clock import ManualClock
from gpu_sandbox.other_writer import OtherWriter
from gpu_sandbox.pace import Pace, PaceName

if TYPE_CHECKING:
    from gpu_sandbox.authenticator import Authenticator
    from gpu_sandbox.autoscaler import AutoscalerTimings
    from gpu_sandbox.aws import AwsCloud, AwsTimings
    from gpu_sandbox.google import GoogleCloud, GoogleTimings
    from gpu_sandbox.machines import Machines
    from gpu_sandbox.nodes import Image, NodeAgent, NodeSpec

__all__ = ["SYSTEM_NODE", "Sandbox", "default_images", "python_image"]

_GPU = "nvidia.com/gpu"
# With a manual clock a started sandbox is so old: what a cluster has from the beginning is there.
_UNTIL_COMPLETE = 300.0

CUDA_IMAGE = {
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}
"""Variables set by NVIDIA's images and images based on them: a pod without a limit sees all GPUs of its node."""


class Sandbox:
    """One EKS-like cluster with its AWS account, or one GKE-like cluster with its Google Cloud project.

    A context manager; `stop` leaves no process and no file behind.

    Args:
        platform: "eks" or "gke".
        cluster_name: The cluster's name, also the name of its context in the kubeconfig.
        region: The cloud's region. Default us-west-2, or us-central1 of Google Cloud.
        zones: The region's zones that are used; in AWS with one subnet each. Default the first three.
        location: For a GKE cluster: the region (the default), or a zone.
        account_id: The AWS account's id. In one process, no two EKS sandboxes may have the same.
        boot_seconds: From an instance's launch to its Node, unless a fault sets it. Default: the pace's.
        container_log_max_size: Bytes of a container's log at which its kubelet rotates it; by default 10 MiB.
        images: What image references stand for, before the defaults (`default_images`).
        clock: "system" is the machine's. With "manual" the cloud, its machines and the stand-in of cluster-autoscaler
            stand still until `advance`; Kubernetes and its pods live in real time all the same.
        pace: "quick" is far faster than a real cloud; "real" uses the clouds' usual times, `speed` times faster.
            Default: quick; with a manual clock real.
        speed: For a real pace, and for the cluster-autoscaler stand-in at each pace. Default: 20; with a manual clock
            1.
        seed: Determines everything random: how old the answers of the cloud's read calls are.
        stale: How old they may be, in seconds; 0: writes are visible at once. Default: the pace's; with a manual
            clock 0.
        timings: How long the cloud takes, instead of the pace's times.
        autoscaler: "stand-in" plays cluster-autoscaler (on GKE the platform's own); with "none" there is none, and a
            real one may be pointed at the sandbox.
        engines: Controllers in addition to Kubernetes' own, from those named in `gpu_sandbox.engines`: the real ones of
            "jobset", "trainer" (with jobset) and "kueue"; for "kuberay-crds" and "training-operator-crds" only the
            custom resources.
        autoscaler_timings: The stand-in's. Default cluster-autoscaler's own, `speed` times faster.
        data_dir: Where everything is written, logs too; kept on stop. By default a temporary folder, which is deleted.
        progress: Gets an occasional line about the progress of the start.
    """

    def __init__(
        self,
        *,
        platform: Platform = "eks",
        cluster_name: str = "k8s-ml",
        region: str | None = None,
        zones: Sequence[str] | None = None,
        location: str | None = None,
        account_id: str = "123456789012",
        boot_seconds: float | None = None,
        container_log_max_size: int = 10 * 2**20,
        images: Sequence[Image] = (),
        clock: ClockName = "system",
        pace: PaceName | None = None,
        speed: float | None = None,
        seed: int = 0,
        stale: float | None = None,
        timings: AwsTimings | GoogleTimings | None = None,
        autoscaler: Literal["stand-in", "none"] = "stand-in",
        autoscaler_timings: AutoscalerTimings | None = None,
        engines: Sequence[EngineName] = (),
        data_dir: Path | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if autoscaler not in ("stand-in", "none"):
            raise ValueError(f"a sandbox's autoscaler is 'stand-in' or 'none'; not {autoscaler!r}")
        if clock not in ("system", "manual"):
            raise ValueError(f"a sandbox's clock is 'system' or 'manual'; not {clock!r}")
        self.clock: SystemClock | ManualClock = ManualClock() if clock == "manual" else SystemClock()
        self.autoscaler = autoscaler
        self._engine_names = with_needed(engines)
        self.pace = Pace.by(clock, name=pace, speed=speed, stale=stale)
        self._autoscaler_timings = autoscaler_timings or self.pace.autoscaler()
        self.cluster_name = cluster_name
        self.platform: Platform = platform
        self.boot_seconds = self.pace.boot_seconds if boot_seconds is None else boot_seconds
        self._container_log_max_size = container_log_max_size
        self.faults = Faults()
        settings = ClusterSettings(
            name=cluster_name,
            region=region,
            zones=zones,
            faults=self.faults,
            timings=timings,
            pace=self.pace,
            seed=seed,
            clock=self.clock,
        )
        self.cluster = managed_cluster(platform, settings, location=location, account_id=account_id)
        self.region = self.cluster.region
        self.zones = tuple(self.cluster.zones)
        self._images = tuple(images)
        self._data_dir = data_dir
        self.progress = progress or _silent
        self._started = contextlib.ExitStack()

    control_plane: ControlPlane
    agent: NodeAgent
    authenticator: Authenticator
    engines: Engines
    control_api: ControlApi
    data_dir: Path
    kubeconfig: Path
    _machines: Machines

    @property
    def aws(self) -> AwsCloud:
        """AWS, in an EKS sandbox; AttributeError otherwise."""
        return self._of_cluster("aws")  # type: ignore[no-any-return]

    @property
    def google(self) -> GoogleCloud:
        """Google Cloud, in a GKE sandbox; AttributeError otherwise."""
        return self._of_cluster("google")  # type: ignore[no-any-return]

    @property
    def vpc_id(self) -> str:
        return self._of_cluster("vpc_id")  # type: ignore[no-any-return]

    @property
    def subnets(self) -> Mapping[str, str]:
        """Subnet id by zone, in an EKS sandbox."""
        return self._of_cluster("subnets")  # type: ignore[no-any-return]

    @property
    def node_role_arn(self) -> str:
        return self._of_cluster("node_role_arn")  # type: ignore[no-any-return]

    def start(self) -> None:
        """Return when pods run. The first start on a machine compiles the control plane, and engines: minutes.

        Raises a SandboxError, with nothing left running.
        """
        binary = control_plane_binary(self.progress)
        engines = compile_engines(self._engine_names, self.progress)
        with contextlib.ExitStack() as starting:
            self._start_parts(binary, engines, starting)
            if isinstance(self.clock, ManualClock):
                self.clock.advance(_UNTIL_COMPLETE)
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

    def _start_parts(self, binary: Path, engines: Mapping[EngineName, Path], starting: contextlib.ExitStack) -> None:
        self.progress("starting etcd, kube-apiserver, kube-scheduler, kube-controller-manager")
        self.data_dir = self._make_data_dir(starting)
        self._start_authenticator(starting)
        self.control_plane = ControlPlane(
            binary=binary,
            data_dir=self.data_dir / "control-plane",
            token_webhook_url=self.authenticator.url,
            cluster_name=self.cluster_name,
            admission_plugins=self.cluster.admission_plugins,
            critical_pods_need_quota=self.cluster.critical_pods_need_quota,
        )
        self.kubeconfig = self.control_plane.kubeconfig
        # Importing and starting the cloud takes as long as the control plane does, so they run in parallel.
        with ThreadPoolExecutor(1, thread_name_prefix="sandbox-start") as pool:
            control_plane_started = pool.submit(self.control_plane.start)
            starting.callback(self.control_plane.stop)
            self._start_cloud(starting)
            control_plane_started.result()
        for collection, manifest in self.cluster.objects():
            self.control_plane.request("POST", collection, manifest)
        self.progress("starting the nodes")
        self._start_nodes(starting)
        if self.autoscaler == "stand-in":
            self._start_autoscaler(starting)
        self._start_engines(engines, starting)
        other_writer = OtherWriter(control_plane=self.control_plane, faults=self.faults)
        other_writer.start()
        starting.callback(other_writer.stop)
        self.control_api = ControlApi(self)
        self.control_api.start()
        starting.callback(self.control_api.stop)

    def _of_cluster(self, name: str) -> Any:
        return getattr(self.cluster, name)

    def _make_data_dir(self, starting: contextlib.ExitStack) -> Path:
        if self._data_dir is not None:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            return self._data_dir.absolute()
        folder = Path(tempfile.mkdtemp(prefix="gpu-sandbox-"))
        starting.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _start_authenticator(self, starting: contextlib.ExitStack) -> None:
        from gpu_sandbox.authenticator import Authenticator

        self.authenticator = Authenticator(self.cluster.identify)
        self.authenticator.start()
        starting.callback(self.authenticator.stop)

    def _start_cloud(self, starting: contextlib.ExitStack) -> None:
        from gpu_sandbox.machines import Machines
        from gpu_sandbox.nodes import NodeAgent

        self.agent = NodeAgent(
            kubeconfig=self.kubeconfig,
            work_dir=self.data_dir / "nodes",
            images=self.pace.images((*self._images, *self.cluster.images(), *default_images())),
            log_file=self.data_dir / "node-agent.log",
            pulls_by_hand=self.pace.by_hand,
        )
        self._machines = Machines(
            control_plane=self.control_plane,
            agent=self.agent,
            faults=self.faults,
            clock=self.clock,
            boot_seconds=self.boot_seconds,
            node_spec=self._node_spec,
            node_joined=self.cluster.node_joined,
            complete_drain=self.cluster.complete_drain,
            shuts_down_at_notice=self.cluster.shuts_down_at_notice,
            drains_only_ready_nodes=self.cluster.drains_only_ready_nodes,
        )
        self.cluster.start(control_plane=self.control_plane, machines=self._machines)
        starting.callback(self.cluster.stop)

    def _node_spec(self, instance: Any) -> NodeSpec:
        spec = self.cluster.node_spec(instance, version=self.control_plane.version)
        speed = 1.0 if self.pace.by_hand else self.pace.speed
        return replace(
            spec,
            container_log_max_size=self._container_log_max_size,
            image_bytes_per_second=spec.image_bytes_per_second * speed,
        )

    def _start_nodes(self, starting: contextlib.ExitStack) -> None:
        from gpu_sandbox.nodes import NodeAgentError

        try:
            self.agent.start()
            starting.callback(self.agent.stop)
            self.agent.add_node(self.cluster.system_node(version=self.control_plane.version))
        except NodeAgentError as error:
            raise ComponentFailed(str(error)) from error
        self._machines.start()
        starting.callback(self._machines.stop)

    def _start_autoscaler(self, starting: contextlib.ExitStack) -> None:
        from gpu_sandbox.autoscaler import Autoscaler

        stand_in = Autoscaler(
            groups=self.cluster.node_groups(),
            control_plane=self.control_plane,
            faults=self.faults,
            timings=self._autoscaler_timings,
            clock=self.clock,
        )
        stand_in.start()
        starting.callback(stand_in.stop)

    def _start_engines(self, binaries: Mapping[EngineName, Path], starting: contextlib.ExitStack) -> None:
        if self._engine_names:
            self.progress(f"starting {', '.join(self._engine_names)}")
        self.engines = Engines(
            names=self._engine_names,
            binaries=binaries,
            control_plane=self.control_plane,
            data_dir=self.data_dir / "engines",
        )
        self.engines.start()
        starting.callback(self.engines.stop)

    # What users need

    def advance(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0) -> None:
        """Let so much time pass at once, in a sandbox with a manual clock; with 0, what is due at once happens.

        It returns when nodes that were to join or to go have done so. Kubernetes' own work goes on after it, in real
        time: pods are bound, and end. Pulls of images of a given size go on for so long. Raises what went wrong in the
        sandbox meanwhile. ValueError if the clock is the machine's.
        """
        if not isinstance(self.clock, ManualClock):
            raise ValueError("the time of this sandbox is the machine's: start it with clock='manual' to move it")
        self.clock.advance(seconds, minutes=minutes, hours=hours)
        self.agent.live(seconds + 60.0 * minutes + 3600.0 * hours)

    def env(self) -> dict[str, str]:
        """The variables by which the cloud's clients, kubectl, Kubernetes' clients and Airflow talk to this sandbox."""
        kubernetes_connection = {
            "conn_type": "kubernetes",
            "extra": {"kube_config_path": str(self.kubeconfig), "namespace": "default"},
        }
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(kubernetes_connection),
            "GPU_SANDBOX_URL": self.control_api.url,
            "GPU_SANDBOX_TOKEN": self.control_api.token,
            "GPU_SANDBOX_CLUSTER": self.cluster_name,
            "GPU_SANDBOX_REGION": self.region,
            "GPU_SANDBOX_ZONES": json.dumps(list(self.zones)),
            "GPU_SANDBOX_PLATFORM": self.platform,
            **self.cluster.env(),
        }

    def interrupt_spot(
        self, *, instance: str | None = None, node: str | None = None, zone: str | None = None
    ) -> list[str]:
        """Give the matching running spot instances their notice; return their ids. ValueError if none matches."""
        return self._with_spot(self.cluster.interrupt_spot, instance, node, zone)

    def recommend_rebalance(
        self, *, instance: str | None = None, node: str | None = None, zone: str | None = None
    ) -> list[str]:
        """Send EC2's rebalance recommendation, as `interrupt_spot`; a notice may follow, but need not."""
        return self._with_spot(self.cluster.recommend_rebalance, instance, node, zone)

    def upgrade_nodes(self, group: str) -> bool:
        """Upgrade a group's nodes at any time, as GKE does by itself; False if it leaves the group alone.

        ValueError if there is no such group, or the cloud upgrades none by itself.
        """
        return self.cluster.upgrade_nodes(group)

    def _with_spot(
        self, act: Callable[[Any], None], instance: str | None, node: str | None, zone: str | None
    ) -> list[str]:
        named = [
            each
            for each in self._machines.spot_instances()
            if instance in (None, each.instance_id) and node in (None, each.node_name) and zone in (None, each.zone)
        ]
        if not named:
            wanted = {"instance": instance, "node": node, "zone": zone}
            told = ", ".join(f"{what} {name}" for what, name in wanted.items() if name) or "anywhere"
            raise ValueError(f"no spot instance runs ({told})")
        for each in named:
            act(each)
        return [each.instance_id for each in named]

    def restart_apiserver(self, down_seconds: float = 0.0) -> None:
        """Stop the API server for this long; return when it is ready again."""
        self.control_plane.restart_apiserver(down_seconds)

    def hang_apiserver(self, seconds: float) -> None:
        """Make the API server answer nothing for this long, with connections open; return when it answers again."""
        self.control_plane.hang_apiserver(seconds)

    def cut_connections(self) -> int:
        """Close all connections to the API server, watches too; new ones are accepted at once. Return how many."""
        return self.control_plane.cut_connections()

    def describe(self) -> dict[str, Any]:
        """Return plain data on what exists now: components, nodes, pods, groups, faults.

        While the API server is down its part is empty and `api_server` is False.
        """
        cluster = self._describe_cluster()
        return {
            "cluster": self.cluster_name,
            "platform": self.platform,
            "region": self.region,
            "kubernetes_version": self.control_plane.version,
            "time": self.clock.utc_now().isoformat(timespec="seconds"),
            "components": {**self.control_plane.components(), **self.engines.components()},
            **cluster,
            "booting": self._machines.booting(),
            "groups": self.cluster.groups(),
            "faults": self.faults.describe(),
        }

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


def managed_cluster(
    platform: Platform, settings: ClusterSettings, *, location: str | None, account_id: str
) -> ManagedCluster:
    """The cluster of that platform, not started. ValueError if the platform is unknown.

    SandboxError if what it needs is not installed.
    """
    if platform == "eks":
        from gpu_sandbox.eks_cluster import EksCluster

        return EksCluster(settings, account_id=account_id)
    if platform == "gke":
        from gpu_sandbox import gke_cluster as gke

        gke.check_requirements()
        return gke.GkeCluster(settings, location=location)
    raise ValueError(f"a sandbox's platform is 'eks' or 'gke'; not {platform!r}")


def default_images() -> tuple[Image, ...]:
    """What the usual image references run: this interpreter, this machine's programs, NVIDIA's plugin."""
    from gpu_sandbox.nodes import Image

    return (
        python_image("python:*"),
        *(_cuda_image(pattern) for pattern in ("nvidia/cuda:*", "cupy/cupy:*")),
        Image(pattern="busybox*"),
        Image(pattern="alpine*"),
        Image(pattern="nvcr.io/nvidia/k8s-device-plugin:*", kind="device-plugin"),
        Image(pattern="*/eks/aws-efa-k8s-device-plugin:*", kind="efa-plugin"),
    )


def python_image(pattern: str, *, folder: Path | None = None, env: Mapping[str, str] | None = None) -> Image:
    """Images that run with this interpreter and its packages; `folder` is mounted at /app."""
    from gpu_sandbox.nodes import Image

    return Image(pattern=pattern, folder=folder, path_prefix=str(Path(sys.executable).parent), env=env or {})


def _cuda_image(pattern: str) -> Image:
    from gpu_sandbox.nodes.environment import DEFAULT_PATH

    folders = ("/usr/local/nvidia/bin", "/usr/local/cuda/bin", str(Path(sys.executable).parent), DEFAULT_PATH)
    return python_image(pattern, env={"PATH": ":".join(folders), **CUDA_IMAGE})


def _silent(line: str) -> None:
    """For callers that want no progress."""


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
        "nodegroup": labels.get("eks.amazonaws.com/nodegroup") or labels.get("cloud.google.com/gke-nodepool"),
        "market": _market(labels),
        "ready": conditions.get("Ready") == "True",
        "cordoned": bool(node["spec"].get("unschedulable")),
        "gpus": int(node["status"].get("allocatable", {}).get(_GPU, 0)),
        "gpus_used": sum(_gpus_of(pod) for pod in living),
        "pods": len(living),
    }


def _market(labels: Mapping[str, str]) -> str:
    provisioning = labels.get("cloud.google.com/gke-provisioning")
    if provisioning:
        return "on-demand" if provisioning == "standard" else "spot"
    return labels.get("eks.amazonaws.com/capacityType", "").lower().replace("_", "-")


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
