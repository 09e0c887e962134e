"""EFA's device plugin, whose pods ask for vpc.amazonaws.com/efa. Pure.

EKS's images bring the driver and no plugin ("Manage EFA devices on Amazon EKS" in EKS's user guide).
"""

from __future__ import annotations

from airflow_gpu_provider.pools.on_nodes import PLUGIN_FOLDER, FabricPlugin

# From the one registry from which aws/eks-charts, stable/aws-efa-k8s-device-plugin, pulls in all regions of AWS. That
# chart is privileged since v0.5.4, for hints of which GPU and interface are near each other; without, the plugin hands
# out the interfaces as well (NVIDIA/aicr#872).
EFA_IMAGE = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.22-eksbuild.9"

_NAME = "aws-efa-k8s-device-plugin"
_MOUNTS = {"device-plugins": PLUGIN_FOLDER, "infiniband": "/dev/infiniband"}


def efa_plugin(resource: str, image: str | None) -> FabricPlugin:
    """Return the plugin that hands out `resource`, with another image instead of AWS's if one is given."""
    container = {
        "name": _NAME,
        "image": image or EFA_IMAGE,
        "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in _MOUNTS.items()],
    }
    return FabricPlugin(
        name=_NAME,
        pod_spec={
            "hostNetwork": True,
            "containers": [container],
            "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in _MOUNTS.items()],
        },
        fabric="EFA",
        resource=resource,
        plugin="efa-k8s-device-plugin",
        dra_driver="dranet",
        without="leave network out and give pods resourceClaims",
    )
