"""NVIDIA's device plugin and driver for one pool: their DaemonSets, and the wait for allocatable GPUs. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.addons.detection import PLUGIN_FOLDER
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpusNotAllocatable, PoolSpecError
from airflow_gpu_provider.pools import GkeGpuPool, GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.workload_placement import tolerations_of
from airflow_gpu_provider.scaling.wait.records import Record
from airflow_gpu_provider.scaling.wait.wait_loop import Progress, format_seconds, phase

VERSION = "v0.20.0"
IMAGE = "nvcr.io/nvidia/k8s-device-plugin"
CONTAINER = "nvidia-device-plugin"

CONFIG_FOLDER = "/config"
CONFIG_FILE = "config.yaml"

_NAME = {"app.kubernetes.io/name": "nvidia-device-plugin"}
PART_OF = {**_NAME, "app.kubernetes.io/managed-by": "airflow-gpu-provider"}
"""The labels of all that this package installs of the plugin, for whichever pool."""

# The plugin's own default is to crash where it finds no GPU; only NVIDIA's manifest, which lands on every node, says
# otherwise. On GPU nodes a crash is right: the kubelet starts it again once the driver is there, and it is seen.
_OPTIONS = {"FAIL_ON_INIT_ERROR": "true"}


def plugin_labels(pool: GpuPool) -> dict[str, str]:
    """Return the labels of all that this package installs of the plugin for a pool, its pods too."""
    return {**PART_OF, POOL_LABEL: pool.name}


def daemon_set(
    pool: GpuPool,
    name: str,
    namespace: str,
    app: Mapping[str, str],
    pod_spec: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a DaemonSet for the nodes of one pool, for server-side apply; `app` is the label that names what it is."""
    labels = {**app, "app.kubernetes.io/managed-by": "airflow-gpu-provider", POOL_LABEL: pool.name}
    metadata = {"labels": labels, **({"annotations": annotations} if annotations else {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {**app, POOL_LABEL: pool.name}},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": metadata, "spec": pod_spec},
        },
    }


@dataclass(frozen=True, kw_only=True)
class DevicePlugin:
    """What is installed for a pool.

    Attributes:
        version: Tag of NVIDIA's image.
        image: Another image, with its tag, instead.
        options: The plugin's environment, like {"DP_DISABLE_HEALTHCHECKS": "xids"}.
        config: The plugin's configuration file, as a mapping: `sharing`, `flags`, `resources`. It lives in a ConfigMap.
        resources: Requests and limits of its container, in Kubernetes' form.
        namespace: Where its DaemonSet lives.
    """

    pool: GpuPool
    version: str = VERSION
    image: str | None = None
    options: Mapping[str, str] | None = None
    config: Mapping[str, Any] | None = None
    resources: Mapping[str, Any] | None = None
    namespace: str = "kube-system"

    @property
    def name(self) -> str:
        """The DaemonSet's name: one for each pool, so that pools do not share options or taints."""
        return f"nvidia-device-plugin-{self.pool.name}"

    @property
    def config_name(self) -> str:
        """The ConfigMap's name."""
        return f"{self.name}-config"

    def manifests(self) -> list[dict[str, Any]]:
        """Return all objects, in the order in which they are applied; what `manifest` refuses is refused."""
        return [each for each in (self.config_map(), self.manifest()) if each]

    def config_map(self) -> dict[str, Any] | None:
        """Return the ConfigMap with the plugin's configuration file, or None where there is no configuration.

        Raises:
            PoolSpecError: The configuration would hand out something else than nvidia.com/gpu, or needs a daemon.
        """
        if not self.config:
            return None
        self._check_config(self.config)
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self.config_name,
                "namespace": self.namespace,
                "labels": plugin_labels(self.pool),
            },
            "data": {CONFIG_FILE: self._config_text()},  # JSON is YAML
        }

    def _config_text(self) -> str:
        return json.dumps({"version": "v1", **(self.config or {})}, indent=2, sort_keys=True)

    def _check_config(self, config: Mapping[str, Any]) -> None:
        sharing = config.get("sharing") or {}
        if "mps" in sharing:
            raise PoolSpecError(
                f"config of the device plugin of pool {self.pool.name} shares GPUs by MPS.",
                "MPS needs NVIDIA's control daemon on each node: install the plugin with its Helm chart or the GPU"
                " Operator, which this package then leaves in place; or share by timeSlicing.",
                pool=self.pool.name,
            )
        slicing = sharing.get("timeSlicing") or {}
        renamed = [each for each in slicing.get("resources") or () if each.get("rename")]
        if slicing.get("renameByDefault") or renamed:
            raise PoolSpecError(
                f"config of the device plugin of pool {self.pool.name} renames shared GPUs.",
                f"Leave renameByDefault and rename out: pods request {GPU_RESOURCE}.",
                pool=self.pool.name,
            )

    def manifest(self) -> dict[str, Any]:
        """Return the DaemonSet, for server-side apply.

        Raises:
            PoolSpecError: An option's value is not a text.
        """
        annotations = {}
        if self.config:
            # The plugin reads its file when it starts: another file has to mean another pod.
            digest = hashlib.sha256(self._config_text().encode()).hexdigest()[:16]
            annotations["airflow-gpu-provider/config"] = digest
        return daemon_set(self.pool, self.name, self.namespace, _NAME, self._pod_spec(), annotations)

    def _pod_spec(self) -> dict[str, Any]:
        selected = [{"key": key, "operator": "In", "values": [v]} for key, v in self.pool.node_selector.items()]
        return {
            "priorityClassName": "system-node-critical",
            "tolerations": self._tolerations(),
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": selected}]
                    }
                }
            },
            "containers": [self._container()],
            "volumes": [{"name": "device-plugins", "hostPath": {"path": PLUGIN_FOLDER}}, *self._config_volumes()],
        }

    def _container(self) -> dict[str, Any]:
        container: dict[str, Any] = {
            "name": CONTAINER,
            "image": self.image or f"{IMAGE}:{self.version}",
            "env": [{"name": name, "value": value} for name, value in sorted(self._environment().items())],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "device-plugins", "mountPath": PLUGIN_FOLDER}],
        }
        if self.config:
            container["volumeMounts"].append({"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True})
        if self.resources:
            container["resources"] = dict(self.resources)
        return container

    def _config_volumes(self) -> list[dict[str, Any]]:
        return [{"name": "config", "configMap": {"name": self.config_name}}] if self.config else []

    def _environment(self) -> dict[str, str]:
        file = {"CONFIG_FILE": f"{CONFIG_FOLDER}/{CONFIG_FILE}"} if self.config else {}
        options = {**_OPTIONS, **file, **(self.options or {})}
        for name, value in options.items():
            if not isinstance(value, str):
                raise PoolSpecError(
                    f"options of the device plugin has {name}={value!r}.", 'Write it as a text, like "true".'
                )
        return options

    def _tolerations(self) -> list[dict[str, str]]:
        on_gpus, *others = tolerations_of(self.pool)
        return [on_gpus, {"key": "CriticalAddonsOnly", "operator": "Exists"}, *others]


# What a kubelet calls a container that it starts again and again, or has no image for.
_STUCK = frozenset({"CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff"})


@dataclass(frozen=True, kw_only=True)
class PluginSnapshot:
    """The pool's nodes, and the plugin's pods by the node they run on."""

    nodes: tuple[Node, ...]
    pods: Mapping[str, PodState]


@dataclass(frozen=True, kw_only=True)
class GpusWait(Record):
    """The wait until every node of the pool that is there has allocatable GPUs; done at once where there is none."""

    pool: str
    server: str
    started: datetime
    deadline: datetime

    def step(self, snapshot: PluginSnapshot, now: datetime) -> Progress:
        """Return whether the GPUs are allocatable; `lines` describes the present state, for the log."""
        nodes = [node for node in snapshot.nodes if not (node.cordoned or node.autoscaler_deleting or node.leaving)]
        missing = [node for node in nodes if node.gpus == 0]
        lines = tuple(self._line(node, snapshot) for node in nodes)
        if not missing:
            phases = [phase("GPUs allocatable", self.started, now)] if nodes else []
            result = {"nodes": {node.name: node.gpus for node in nodes}, "timeline": phases}
            return Progress(done=True, lines=lines, result=result)
        if now < self.deadline:
            return Progress(lines=lines)
        stuck = missing[0]
        error = GpusNotAllocatable(
            f"Pool {self.pool}: {GPU_RESOURCE} is not allocatable on {', '.join(node.name for node in missing)} "
            f"after {format_seconds(now - self.started)}; {self._line(stuck, snapshot)}.",
            f"{driver_fix(stuck)} See the device plugin's log.",
            pool=self.pool,
            node=stuck.name,
        )
        return Progress(lines=lines, error=error, result={"stuck": stuck.name})

    def _line(self, node: Node, snapshot: PluginSnapshot) -> str:
        if node.gpus:
            return f"node {node.name} has nvidia.com/gpu allocatable: {node.gpus}"
        pod = snapshot.pods.get(node.name)
        state = plugin_state(pod) if pod else f"served by {self.server}"
        ready = "" if node.ready else f", not Ready ({node.not_ready_reason})"
        return f"node {node.name}{ready} has no allocatable GPUs yet: {state}"


def driver_fix(node: Node) -> str:
    """Return what to do about a node that has GPUs, and none of them allocatable, as far as its image tells."""
    if node.image.driver:
        return f"{node.image.driver} installs NVIDIA's driver; check that the node has it."
    return f"The node runs {node.image}, which may lack NVIDIA's driver. {node.image.fix}"


def has_failed(pod: PodState) -> bool:
    """Return True if the plugin ended with an error, or its image cannot be pulled: waiting alone will not help."""
    base = pod.base
    return base is not None and (base.reason in _STUCK or bool(base.exit_code))


def plugin_state(pod: PodState) -> str:
    """Say in words what a pod of the plugin does."""
    base = pod.base
    if base is None:
        return f"plugin pod {pod.name} is {pod.phase}"
    if base.status == "running":
        return f"plugin pod {pod.name} is running and has not registered any GPU"
    reason = f"{base.reason}: {base.message}".strip(": ")
    return f"plugin pod {pod.name} is {base.status} ({reason or 'no reason given'})"


# -- NVIDIA's driver on GKE nodes whose pool leaves it to a DaemonSet: Google's installers for COS and Ubuntu --------

# As in GoogleCloudPlatform/container-engine-accelerators, nvidia-driver-installer/{cos,ubuntu}/daemonset-preloaded.yaml
# have it, but for one pool's nodes only.

DRIVER_NAMESPACE = "kube-system"
PAUSE_IMAGE = "gke.gcr.io/pause:3.8"

# The node images bring these; there is nothing to pull.
_PRELOADED = {"cos": "cos-nvidia-installer:fixed", "ubuntu": "gke-nvidia-installer:fixed"}
_DRIVER = {"app.kubernetes.io/name": "nvidia-driver-installer"}
_COS_ENVIRONMENT = {
    "NVIDIA_INSTALL_DIR_HOST": "/home/kubernetes/bin/nvidia",
    "NVIDIA_INSTALL_DIR_CONTAINER": "/usr/local/nvidia",
    "VULKAN_ICD_DIR_HOST": "/home/kubernetes/bin/nvidia/vulkan/icd.d",
    "VULKAN_ICD_DIR_CONTAINER": "/etc/vulkan/icd.d",
    "ROOT_MOUNT_DIR": "/root",
    "COS_TOOLS_DIR_HOST": "/var/lib/cos-tools",
    "COS_TOOLS_DIR_CONTAINER": "/build/cos-tools",
}
# What of the node each installer sees: name -> (path on the node, path in the container)
_MOUNTS = {
    "cos": {
        "dev": ("/dev", "/dev"),
        "vulkan-icd": ("/home/kubernetes/bin/nvidia/vulkan/icd.d", "/etc/vulkan/icd.d"),
        "nvidia": ("/home/kubernetes/bin/nvidia", "/usr/local/nvidia"),
        "root": ("/", "/root"),
        "cos-tools": ("/var/lib/cos-tools", "/build/cos-tools"),
    },
    "ubuntu": {"dev": ("/dev", "/dev"), "boot": ("/boot", "/boot"), "root": ("/", "/root")},
}


def driver_manifest(pool: GpuPool, *, image: str | None = None) -> dict[str, Any] | None:
    """Return the DaemonSet that installs the driver, or None where the pool does not leave that to one.

    Args:
        pool: The pool.
        image: Another installer instead of the node image's own.
    """
    if not isinstance(pool, GkeGpuPool) or pool.driver != "daemonset":
        return None
    return daemon_set(
        pool, f"nvidia-driver-installer-{pool.name}", DRIVER_NAMESPACE, _DRIVER, _driver_pod_spec(pool, image)
    )


def _driver_pod_spec(pool: GkeGpuPool, image: str | None) -> dict[str, Any]:
    system = "ubuntu" if "UBUNTU" in pool.image_type.upper() else "cos"
    mounts = _MOUNTS[system]
    return {
        "priorityClassName": "system-node-critical",
        "nodeSelector": pool.node_selector,
        "tolerations": [{"operator": "Exists"}],
        **({"hostNetwork": True, "hostPID": True} if system == "cos" else {}),
        "volumes": [{"name": name, "hostPath": {"path": host}} for name, (host, _) in mounts.items()],
        "initContainers": [_installer(system, image)],
        "containers": [{"name": "pause", "image": PAUSE_IMAGE}],
    }


def _installer(system: str, image: str | None) -> dict[str, Any]:
    environment = _COS_ENVIRONMENT if system == "cos" else {}
    return {
        "name": "nvidia-driver-installer",
        "image": image or _PRELOADED[system],
        "imagePullPolicy": "IfNotPresent" if image else "Never",
        "resources": {"requests": {"cpu": "150m"}},
        "securityContext": {"privileged": True},
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": name, "mountPath": inside} for name, (_, inside) in _MOUNTS[system].items()],
    }
