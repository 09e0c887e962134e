"""What is installed for the nodes of one pool: NVIDIA's device plugin and driver, and a fabric's device plugin. Pure.

All of it is in one namespace, which has nothing else: its pods need folders of the node, which pod security below
`privileged` refuses, and who may write DaemonSets there owns the nodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.model.lease import PART_OF
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.on_nodes import PLUGIN_FOLDER, NodeDaemon
from airflow_gpu_provider.pools.workload_placement import tolerations_of

Manifest = dict[str, Any]
"""An object in Kubernetes' form, or a part of one."""

VERSION = "v0.20.0"
IMAGE = "nvcr.io/nvidia/k8s-device-plugin"
# As NVIDIA/gpu-operator v26.7.0 has it, in bundle/manifests/gpu-operator-certified.clusterserviceversion.yaml.
_DIGESTS = {VERSION: "@sha256:a61ba9fd8efb82f3a79f877f7580e02c1e8e7593f62473644bc9c79e315c3312"}
CONTAINER = "nvidia-device-plugin"

CONFIG_FOLDER = "/config"
CONFIG_FILE = "config.yaml"

_NAME = {"app.kubernetes.io/name": "nvidia-device-plugin"}
PLUGIN_LABELS = {**_NAME, **PART_OF}
"""The labels of all that this package installs of the plugin, for whichever pool."""

# The plugin's own default is to crash where it finds no GPU; only NVIDIA's manifest, which lands on every node, says
# otherwise. On GPU nodes a crash is right: the kubelet starts it again once the driver is there, and it is seen.
_OPTIONS = {"FAIL_ON_INIT_ERROR": "true"}


PLUGIN_NAMESPACE = "airflow-gpu-device-plugins"
_PRIORITY = "system-node-critical"


def namespace_manifests() -> list[Manifest]:
    """Return the namespace of all this, and the quota that allows the priority of its pods there.

    GKE admits pods of that priority outside kube-system only where a ResourceQuota has its scope ("Limit Priority
    Class consumption by default" in Kubernetes' "Resource Quotas"; cilium/cilium#13852, admiraltyio/admiralty#124). The
    number is that of GKE's own quota in kube-system (openservicemesh/osm#4408): it limits nothing.
    """
    privileged = {"pod-security.kubernetes.io/enforce": "privileged"}
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": [_PRIORITY]}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": PLUGIN_NAMESPACE, "labels": {**PART_OF, **privileged}},
        },
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": _PRIORITY, "namespace": PLUGIN_NAMESPACE, "labels": PART_OF},
            "spec": {"hard": {"pods": "1G"}, "scopeSelector": {"matchExpressions": [scope]}},
        },
    ]


def plugin_labels(pool: GpuPool) -> dict[str, str]:
    """Return the labels of all that this package installs of the plugin for a pool, its pods too."""
    return {**PLUGIN_LABELS, POOL_LABEL: pool.name}


def daemon_set(
    pool: GpuPool,
    name: str,
    namespace: str,
    app: Mapping[str, str],
    pod_spec: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return a DaemonSet for the nodes of one pool, for server-side apply; `app` is the label that names what it is."""
    labels = {**app, **PART_OF, POOL_LABEL: pool.name}
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


def _tolerations(pool: GpuPool) -> list[dict[str, str]]:
    return [*tolerations_of(pool), {"key": "CriticalAddonsOnly", "operator": "Exists"}]


@dataclass(frozen=True, kw_only=True)
class DevicePlugin:
    """What is installed for a pool, by the arguments of InstallDevicePluginOperator."""

    pool: GpuPool
    version: str = VERSION
    image: str | None = None
    options: Mapping[str, str] | None = None
    config: Mapping[str, Any] | None = None
    resources: Mapping[str, Any] | None = None
    namespace: str = PLUGIN_NAMESPACE

    @property
    def name(self) -> str:
        """The DaemonSet's name: one for each pool, so that pools do not share options or taints."""
        return f"nvidia-device-plugin-{self.pool.name}"

    @property
    def config_name(self) -> str:
        return f"{self.name}-config"

    def manifests(self) -> list[Manifest]:
        """Return all objects, in the order in which they are applied."""
        return [each for each in (self.config_map(), self.manifest()) if each]

    def config_map(self) -> Manifest | None:
        """Return the ConfigMap with the plugin's configuration file, or None where there is no configuration."""
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

    def manifest(self) -> Manifest:
        """Return the DaemonSet, for server-side apply."""
        annotations = {}
        if self.config:
            # The plugin reads its file when it starts: another file has to mean another pod.
            digest = hashlib.sha256(self._config_text().encode()).hexdigest()[:16]
            annotations["airflow-gpu-provider/config"] = digest
        return daemon_set(self.pool, self.name, self.namespace, _NAME, self._pod_spec(), annotations)

    def _pod_spec(self) -> Manifest:
        selected = [{"key": key, "operator": "In", "values": [v]} for key, v in self.pool.node_selector.items()]
        config = [{"name": "config", "configMap": {"name": self.config_name}}] if self.config else []
        return {
            "priorityClassName": _PRIORITY,
            "automountServiceAccountToken": False,
            "tolerations": _tolerations(self.pool),
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": selected}]
                    }
                }
            },
            "containers": [self._container()],
            "volumes": [{"name": "device-plugins", "hostPath": {"path": PLUGIN_FOLDER}}, *config],
        }

    def _container(self) -> Manifest:
        container: dict[str, Any] = {
            "name": CONTAINER,
            "image": self.image or f"{IMAGE}:{self.version}{_DIGESTS.get(self.version, '')}",
            "env": [{"name": name, "value": value} for name, value in sorted(self._environment().items())],
            "securityContext": self._security_context(),
            "volumeMounts": [{"name": "device-plugins", "mountPath": PLUGIN_FOLDER}],
        }
        if self.config:
            container["volumeMounts"].append({"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True})
        if self.resources:
            container["resources"] = dict(self.resources)
        return container

    def _security_context(self) -> Manifest:
        """Return no capability but where the plugin ends without SYS_ADMIN, as NVIDIA's chart has it (_helpers.tpl).

        To see MIG devices, or GPUs by volume mounts rather than by a variable, a container needs it
        (NVIDIA/nvidia-container-toolkit#1740).
        """
        if self._needs_sys_admin:
            return {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}
        return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

    @property
    def _needs_sys_admin(self) -> bool:
        flags = (self.config or {}).get("flags") or {}
        options = self.options or {}
        strategy = options.get("MIG_STRATEGY", flags.get("migStrategy", "none"))
        lists = options.get("DEVICE_LIST_STRATEGY", (flags.get("plugin") or {}).get("deviceListStrategy", ""))
        return strategy != "none" or "volume-mounts" in lists

    def _environment(self) -> dict[str, str]:
        file = {"CONFIG_FILE": f"{CONFIG_FOLDER}/{CONFIG_FILE}"} if self.config else {}
        mig = {"NVIDIA_MIG_MONITOR_DEVICES": "all"} if self._needs_sys_admin else {}
        options = {**_OPTIONS, **mig, **file, **(self.options or {})}
        for name, value in options.items():
            if not isinstance(value, str):
                raise PoolSpecError(
                    f"options of the device plugin has {name}={value!r}.", 'Write it as a text, like "true".'
                )
        return options


# -- what nodes need beside it, by the pool's cloud -----------------------------------------------------------


def driver_manifest(pool: GpuPool, *, namespace: str, image: str | None = None) -> Manifest | None:
    """Return the DaemonSet that installs the driver, or None where the pool does not leave that to one.

    `image` is another installer instead of the node image's own.
    """
    return _manifest_of(pool, pool.driver_installer(image), namespace)


def fabric_manifest(pool: GpuPool, *, namespace: str, image: str | None = None) -> Manifest | None:
    """Return the DaemonSet that hands out the interfaces of the pool's fabric, or None where it has none."""
    return _manifest_of(pool, pool.fabric_plugin(image), namespace)


def _manifest_of(pool: GpuPool, daemon: NodeDaemon | None, namespace: str) -> Manifest | None:
    if daemon is None:
        return None
    pod_spec = {
        "priorityClassName": _PRIORITY,
        "automountServiceAccountToken": False,
        "nodeSelector": dict(pool.node_selector),
        "tolerations": _tolerations(pool),
        **daemon.pod_spec,
    }
    return daemon_set(pool, f"{daemon.name}-{pool.name}", namespace, {"app.kubernetes.io/name": daemon.name}, pod_spec)
