"""Images of a block's trainings, pulled by each node of the pool from the moment it joins, beside driver and plugin.

A DaemonSet for each architecture has one container for each image. Each is run to wait, with a program of this package
that a ConfigMap mounts: so an image needs no shell, and no other image is pulled (kube-fledged copies `echo` from
busybox into each; OpenKruise's ImagePullJob asks the container runtime, by a daemon of its own).

All of it belongs to the block's demand Lease: when that is deleted, Kubernetes deletes the rest. Pods of DaemonSets are
no work to this package, nor to cluster-autoscaler, Karpenter or a drain, and these ask for no resources.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.addons.device_plugin import daemon_set
from airflow_gpu_provider.cluster.api.leases import read_lease
from airflow_gpu_provider.cluster.api.rest import ApiClient, label_selector, list_items, server_side_apply
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE, PART_OF
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.wait.records import phase

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.demand_key import DemandKey

_PODS = f"/api/v1/namespaces/{DEMAND_NAMESPACE}/pods"
_FOLDER = "/airflow-gpu-provider"
_INSTANCE = "app.kubernetes.io/instance"
_NOBODY = 65534

_ADDRESS, _HEADERS = 0x400000, 64 + 56
_MACHINES = {
    # mov eax, 34 (pause); syscall; jmp to the first
    "amd64": (62, bytes.fromhex("b822000000 0f05 ebf7")),
    # mov x0-x4, 0; mov x8, 73 (ppoll); svc 0; b to the first
    "arm64": (183, struct.pack("<8I", *(0xD2800000 + n for n in range(5)), 0xD2800928, 0xD4000001, 0x17FFFFF9)),
}
"""By Kubernetes' names of architectures: ELF's number, and a program that waits for ever."""


def waiting_program(arch: str) -> bytes:
    """Return a static ELF executable of some 130 bytes that waits until it is killed."""
    machine, code = _MACHINES[arch]
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little endian
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, _ADDRESS + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )  # executable, its entry, one program header
    size = _HEADERS + len(code)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x10000)  # read and execute
    return ident + header + segment + code


def manifests(
    pool: GpuPool, key: DemandKey, lease_uid: str, images: Sequence[str], secrets: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return what pulls the images for the trainings of a demand, whose Lease owns it all; in the order to apply it in.

    A node pulls the images in turn: those that are needed first or take longest stand in front. The image pull secrets
    are of the Lease's namespace.
    """
    name = _name(key)
    owner = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": key.lease_name, "uid": lease_uid}
    programs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": DEMAND_NAMESPACE, "labels": PART_OF},
        "binaryData": {arch: base64.b64encode(waiting_program(arch)).decode() for arch in _MACHINES},
    }
    sets = [_daemon_set(pool, key, arch, list(dict.fromkeys(images)), secrets) for arch in _MACHINES]
    return [{**each, "metadata": {**each["metadata"], "ownerReferences": [owner]}} for each in (programs, *sets)]


def _name(key: DemandKey) -> str:
    return f"prefetch-{key.hash}"


def _daemon_set(
    pool: GpuPool, key: DemandKey, arch: str, images: Sequence[str], secrets: Sequence[str]
) -> dict[str, Any]:
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {**pool.node_selector, "kubernetes.io/arch": arch},
        "tolerations": [{"operator": "Exists"}],  # of a node that is not ready, whose driver or network is to come
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(number, image, arch) for number, image in enumerate(images)],
        "volumes": [{"name": "programs", "configMap": {"name": _name(key), "defaultMode": 0o555}}],
    }
    if secrets:
        spec["imagePullSecrets"] = [{"name": each} for each in secrets]
    app = {"app.kubernetes.io/name": "prefetch", _INSTANCE: key.hash, "app.kubernetes.io/component": arch}
    return daemon_set(pool, f"{_name(key)}-{arch}", DEMAND_NAMESPACE, app, spec)


def _container(number: int, image: str, arch: str) -> dict[str, Any]:
    return {
        "name": f"image-{number}",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [f"{_FOLDER}/{arch}"],
        "workingDir": "/",
        # Images of CUDA name all GPUs, which NVIDIA's runtime would mount, and fails at while there is no driver.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        # Zero, and said: a ResourceQuota may ask for it, and a training may want all of its node.
        "resources": {"requests": {"cpu": "0", "memory": "0"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "programs", "mountPath": _FOLDER, "readOnly": True}],
    }


def prefetch(api: ApiClient, pool: GpuPool, key: DemandKey, images: Sequence[str], secrets: Sequence[str] = ()) -> None:
    """Have the pool's nodes pull the images, those to come too, as long as the demand's Lease is there.

    Where the cluster refuses some of it, what was written goes with the Lease.
    """
    lease = read_lease(api, key.lease_name)
    if lease is None:
        return
    for each in manifests(pool, key, lease["metadata"]["uid"], images, secrets):
        server_side_apply(api, each)


def pulls(api: ApiClient, key: DemandKey, nodes: Iterable[str]) -> tuple[list[Json], dict[str, str]]:
    """Return how long the prefetch has taken on these nodes: see `pull_phases`."""
    pods = list_items(api, _PODS, resource="pods", labelSelector=label_selector({_INSTANCE: key.hash}))
    names = set(nodes)
    return pull_phases([pod for pod in pods if pod["spec"].get("nodeName") in names])


def pull_phases(pods: Iterable[Json]) -> tuple[list[Json], dict[str, str]]:
    """Return the pulls that are over as phases, of each image the one that ended last; and the images that are to come.

    Of these, why the kubelet could not pull them, in its words; empty while it pulls or has yet to.

    A node pulls a pod's images in turn, and starts each container when its image is there.
    """
    found: dict[str, tuple[datetime, datetime]] = {}
    left: dict[str, str] = {}
    for pod in pods:
        status = pod.get("status") or {}
        states = {each["name"]: each.get("state") or {} for each in status.get("containerStatuses") or ()}
        begun = status.get("startTime")
        for container in pod["spec"]["containers"]:
            state = states.get(container["name"], {})
            started = (state.get("running") or {}).get("startedAt")
            if not started or not begun:
                left[container["image"]] = _why_not(state) or left.get(container["image"], "")
                continue
            span = datetime.fromisoformat(begun), datetime.fromisoformat(started)
            found[container["image"]] = max(found.get(container["image"], span), span, key=lambda each: each[1])
            begun = started
    phases: list[Json] = [phase("image pull", *span, image=image) for image, span in found.items() if image not in left]
    return phases, left


def _why_not(state: Json) -> str:
    """Return why a container has no image, by the kubelet (pkg/kubelet/images/types.go); empty while it comes."""
    waiting = state.get("waiting") or {}
    is_failed = waiting.get("reason") not in (None, "", "ContainerCreating", "PodInitializing")
    return f"{waiting['reason']}: {waiting.get('message') or ''}".strip(": ") if is_failed else ""
