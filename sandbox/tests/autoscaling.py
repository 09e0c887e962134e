"""Pods, groups and what cluster-autoscaler says of them, for the tests of the stand-in and of a real one."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import boto3
import yaml
from kubernetes.client import ApiClient, ApiException, CoreV1Api
from kubernetes.config import new_client_from_config

from gpu_sandbox import SandboxProcess
from tests.sandbox.running import watched

TEMPLATE = "k8s.io/cluster-autoscaler/node-template"
STATUS = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
_TIMES = ["lastProbeTime", "lastTransitionTime"]
STATUS_SHAPE = {
    "status": ["autoscalerStatus", "clusterWide", "nodeGroups", "time"],
    "clusterWide": {
        "health": [*_TIMES, "nodeCounts", "status"],
        "scaleUp": [*_TIMES, "status"],
        "scaleDown": [*_TIMES, "status"],
    },
    "group": {
        "health": ["cloudProviderTarget", *_TIMES, "maxSize", "minSize", "nodeCounts", "status"],
        "scaleUp": ["backoffInfo", *_TIMES, "status"],
        "scaleDown": [*_TIMES, "status"],
    },
}
"""The same of the stand-in and of a real one."""
CREATION = 150
"""Seconds that a node group takes."""
BUSYBOX = {"name": "main", "image": "busybox:1.36"}


def gpu_pod(name: str, *, gpus: int = 1, seconds: float = 300, **spec: Any) -> dict[str, Any]:
    """A pod that sleeps on GPUs; `spec` is added to its own."""
    container = {
        **BUSYBOX,
        "command": ["sleep", str(seconds)],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"cpu": "500m", "memory": "64Mi"}},
    }
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            # None at all would free its GPU in the API server's eyes before it is free on the node.
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "tolerations": tolerations,
            **spec,
        },
    }


class Cluster:
    """A sandbox's cluster, through its administrator's eyes."""

    def __init__(self, sandbox: SandboxProcess) -> None:
        self.sandbox = sandbox
        self.env = sandbox.env()
        self._client: ApiClient = new_client_from_config(self.env["KUBECONFIG"])
        self.core = CoreV1Api(self._client)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded reply; empty where nothing is there."""
        headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        url = f"{self._client.configuration.host}{path}"
        try:
            return json.loads(self._client.request(method, url, headers=headers, body=body).data)
        except ApiException as error:
            if error.status == 404:
                return {}
            raise

    def create(self, pod: dict[str, Any]) -> None:
        self.call("POST", "/api/v1/namespaces/default/pods", pod)

    def delete_pods(self) -> None:
        for pod in self.pods():
            self.call("DELETE", f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})

    def delete(self, name: str) -> None:
        self.core.delete_namespaced_pod(name, "default")

    def pods(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.call("GET", "/api/v1/namespaces/default/pods")["items"]
        return items

    def phase(self, name: str) -> str:
        return str(self.call("GET", f"/api/v1/namespaces/default/pods/{name}").get("status", {}).get("phase"))

    def unschedulable(self) -> list[str]:
        """The names of the pods that the scheduler has found no node for."""
        reasons = {
            pod["metadata"]["name"]: [each.get("reason") for each in pod["status"].get("conditions") or ()]
            for pod in self.pods()
        }
        return [name for name, found in reasons.items() if "Unschedulable" in found]

    def until_running(self, name: str) -> None:
        """By a watch: pods live in real time."""
        pod = {"namespace": "default", "field_selector": f"metadata.name={name}"}
        watched(self.core.list_namespaced_pod, "0", lambda _, pod: pod.status.phase == "Running", **pod)

    def gpu_nodes(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.call("GET", "/api/v1/nodes")["items"]
        return [item for item in items if item["metadata"]["name"] != "sandbox-system"]

    def taints(self) -> set[str]:
        return {taint["key"] for node in self.gpu_nodes() for taint in node["spec"].get("taints") or ()}

    def events(self, reason: str, *, about: str | None = None) -> list[str]:
        """The messages of an autoscaler's events, of pods or nodes in `default` and of its own ConfigMap."""
        items = [
            item
            for namespace in ("default", "kube-system")
            for item in self.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        ]
        return [
            item["message"]
            for item in items
            if item["reason"] == reason
            and item["source"]["component"] == "cluster-autoscaler"
            and about in (None, item["involvedObject"]["name"])
        ]

    def forget_events(self) -> None:
        for namespace in ("default", "kube-system"):
            self.call("DELETE", f"/api/v1/namespaces/{namespace}/events")

    def status(self) -> dict[str, Any]:
        """The autoscaler's status, decoded; empty before it is written."""
        data = self.call("GET", STATUS).get("data")
        return dict(yaml.safe_load(data["status"])) if data else {}

    def status_updated(self) -> str:
        return str(self.call("GET", STATUS)["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/last-updated"])

    def group_status(self, name: str) -> dict[str, Any]:
        groups = {group["name"]: group for group in self.status().get("nodeGroups") or ()}
        return dict(groups.get(name, {}))


class Gke(Cluster):
    """With node pools as their owner makes them."""

    def __init__(self, sandbox: SandboxProcess) -> None:
        super().__init__(sandbox)
        from google.cloud.container_v1 import ClusterManagerClient
        from google.oauth2.service_account import Credentials

        credentials = Credentials.from_service_account_file(self.env["GOOGLE_APPLICATION_CREDENTIALS"])
        self.client = ClusterManagerClient(
            credentials=credentials.with_scopes(["https://www.googleapis.com/auth/cloud-platform"]),
            transport="rest",
            client_options={"api_endpoint": self.env["GPU_SANDBOX_GOOGLE_ENDPOINT"]},
        )
        project, location = self.env["GPU_SANDBOX_PROJECT"], self.env["GPU_SANDBOX_LOCATION"]
        self.parent = f"projects/{project}/locations/{location}/clusters/{sandbox.cluster_name}"

    def node_pool(self, name: str, *, autoscaling: dict[str, Any] | None, zones: int = 1, queued: bool = False) -> None:
        config: dict[str, Any] = {
            "machine_type": "g2-standard-4",
            "accelerators": [
                {
                    "accelerator_type": "nvidia-l4",
                    "accelerator_count": 1,
                    "gpu_driver_installation_config": {"gpu_driver_version": "DEFAULT"},
                }
            ],
            "labels": {"role": name},
        }
        pool: dict[str, Any] = {
            "name": name,
            "config": config,
            "initial_node_count": 0,
            "locations": [f"us-central1-{zone}" for zone in "abc"[:zones]],
        }
        if autoscaling:
            pool["autoscaling"] = {"enabled": True, **autoscaling}
        if queued:
            pool["queued_provisioning"] = {"enabled": True}
            config["reservation_affinity"] = {"consume_reservation_type": "NO_RESERVATION"}
        self.client.create_node_pool(request={"parent": self.parent, "node_pool": pool})
        self.sandbox.advance(minutes=1)
        assert self.client.get_node_pool(name=f"{self.parent}/nodePools/{name}").status.name == "RUNNING"

    def node_pools(self) -> list[str]:
        pools = self.client.list_node_pools(parent=self.parent).node_pools
        return [pool.name for pool in pools if pool.name != "default-pool"]

    def sizes(self, pool: str) -> dict[str, int]:
        groups = self.sandbox.describe()["groups"]
        return {group["zone"][-1]: group["desired"] for group in groups if group["nodegroup"] == pool}

    # ProvisioningRequests in the namespace `default`

    def request(self, name: str, *, nodes: int, gpus: int = 1, run_seconds: int = 3600) -> None:
        """For pods that select the node pool `queued`, one for each node; without these pods."""
        pod = gpu_pod("", gpus=gpus, nodeSelector={"role": "queued"})
        self.call("POST", TEMPLATES, {"metadata": {"name": name}, "template": {"spec": pod["spec"]}})
        spec = {
            "provisioningClassName": "queued-provisioning.gke.io",
            "parameters": {"maxRunDurationSeconds": str(run_seconds)},
            "podSets": [{"count": nodes, "podTemplateRef": {"name": name}}],
        }
        kind = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
        self.call("POST", REQUESTS, {**kind, "metadata": {"name": name}, "spec": spec})

    def conditions(self, request: str) -> dict[str, tuple[str, str]]:
        """The status and reason of each."""
        found = self.call("GET", f"{REQUESTS}/{request}").get("status", {}).get("conditions", ())
        return {each["type"]: (each["status"], each["reason"]) for each in found}

    def details(self, request: str) -> dict[str, str]:
        return dict(self.call("GET", f"{REQUESTS}/{request}")["status"]["provisioningClassDetails"])

    def delete_requests(self) -> None:
        self.call("DELETE", REQUESTS)
        self.call("DELETE", TEMPLATES)


class Eks(Cluster):
    """With node groups as their owner makes them, and tags on the Auto Scaling groups behind."""

    def __init__(self, sandbox: SandboxProcess) -> None:
        super().__init__(sandbox)
        self.client = cache(self._aws_client)
        self.subnets: dict[str, str] = json.loads(self.env["GPU_SANDBOX_SUBNETS"])
        self.zones = list(self.subnets)

    def _aws_client(self, service: str) -> Any:
        session = boto3.Session(
            aws_access_key_id=self.env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.env["AWS_SECRET_ACCESS_KEY"],
            region_name=self.env["AWS_DEFAULT_REGION"],
        )
        return session.client(service, endpoint_url=self.env["AWS_ENDPOINT_URL"])

    def node_group(self, name: str, **request: Any) -> str:
        """Create a group, and let EKS's minutes pass by hand; returns its Auto Scaling group's name."""
        self.create_group(name, **request)
        self.sandbox.advance(CREATION)
        assert self.described(name)["status"] == "ACTIVE"
        return self.asg_of(name)

    def create_group(self, name: str, *, max_size: int = 3, accelerator: bool = True, **request: Any) -> None:
        """Ask for a group at size 0, one GPU a node."""
        eks = self.client("eks")
        eks.create_nodegroup(
            clusterName=self.sandbox.cluster_name,
            nodegroupName=name,
            **{
                "scalingConfig": {"minSize": 0, "maxSize": max_size, "desiredSize": 0},
                "instanceTypes": ["g6.xlarge"],
                "subnets": [self.subnets[self.zones[0]]],
                "nodeRole": self.env["GPU_SANDBOX_NODE_ROLE"],
                "amiType": "AL2023_x86_64_NVIDIA",
                "taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
                "labels": {
                    "role": name,
                    **({"k8s.amazonaws.com/accelerator": "nvidia-l4"} if accelerator else {}),
                },
                **request,
            },
        )

    def asg_of(self, name: str) -> str:
        """The Auto Scaling group of a node group that is ACTIVE."""
        return str(self.described(name)["resources"]["autoScalingGroups"][0]["name"])

    def described(self, name: str) -> dict[str, Any]:
        cluster = self.sandbox.cluster_name
        return dict(self.client("eks").describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"])

    def node_groups(self) -> list[str]:
        """All but the cluster's own first one."""
        found = self.client("eks").list_nodegroups(clusterName=self.sandbox.cluster_name)["nodegroups"]
        return [name for name in found if name != "system"]

    def delete_group(self, name: str) -> None:
        self.client("eks").delete_nodegroup(clusterName=self.sandbox.cluster_name, nodegroupName=name)

    def tag(self, asg_name: str, **tags: str) -> None:
        self.client("autoscaling").create_or_update_tags(
            Tags=[
                {
                    "ResourceId": asg_name,
                    "ResourceType": "auto-scaling-group",
                    "Key": key,
                    "Value": value,
                    "PropagateAtLaunch": False,
                }
                for key, value in tags.items()
            ]
        )

    def desired(self, asg_name: str) -> int:
        groups = {group["name"]: group for group in self.sandbox.describe()["groups"]}
        return int(groups[asg_name]["desired"])

    def install_device_plugin(self) -> None:
        """A DaemonSet of NVIDIA's plugin on every GPU node, so that GPUs become allocatable."""
        labels = {"app": "nvidia-device-plugin"}
        spec = {
            "containers": [{"name": "plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}],
            "tolerations": [{"operator": "Exists"}],
        }
        self.call(
            "POST",
            "/apis/apps/v1/namespaces/kube-system/daemonsets",
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": "nvidia-device-plugin"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                },
            },
        )


def shape_of(status: dict[str, Any]) -> dict[str, Any]:
    """Its keys, those of the first group and those of both groups' conditions."""
    group = status["nodeGroups"][0]
    return {
        "status": sorted(status),
        "clusterWide": {name: sorted(condition) for name, condition in status["clusterWide"].items()},
        "group": {name: sorted(each) for name, each in group.items() if isinstance(each, dict)},
    }
