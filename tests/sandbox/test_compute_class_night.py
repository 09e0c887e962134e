"""A night whose nodes GKE adds by a ComputeClass, from nothing to nothing; one of its priorities has no capacity."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from kubernetes import client, config
from structlog.testing import capture_logs

from gpu_sandbox.nodes import Taint
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.karpenter_objects import MERGE
from tests.sandbox.provisioner import Kind, Provisioner
from tests.sandbox.running import eventually
from tests.sandbox.test_provisioners import LEAVING, here, is_told, one_night, pool_of

__all__ = ["here"]

GROUP, PLURAL = "cloud.google.com", "computeclasses"
LABEL = "cloud.google.com/compute-class"
GKE = Kind(
    source="cluster-autoscaler",
    labels={LABEL: "gpu"},
    reason="TriggeredScaleUp",
    message="pod triggered scale-up: [{{https://www.googleapis.com/z/instanceGroups/nap-gpu-grp 0->1 (max: 1000)}}]",
    brings_plugin=True,
    taints=(Taint(key=LABEL, value="gpu"),),
)
NO_SPOT = "NodeProvisioning associated with this priority failed due to the OutOfResources error."


@pytest.fixture
def compute_class(gpu_sandbox: Sandbox) -> Iterator[None]:
    """A ComputeClass of spot and then on-demand machines, of which there is no spot now."""
    api = config.new_client_from_config(str(gpu_sandbox.kubeconfig))
    kinds, objects = client.ApiextensionsV1Api(api), client.CustomObjectsApi(api)
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}}
    names = {"kind": "ComputeClass", "plural": PLURAL, "singular": "computeclass", "listKind": "ComputeClassList"}
    spec = {"group": GROUP, "scope": "Cluster", "names": names, "versions": [{**version, "schema": schema}]}
    kinds.create_custom_resource_definition({"metadata": {"name": f"{PLURAL}.{GROUP}"}, "spec": spec})
    machine = {"gpu": {"type": "nvidia-l4", "count": 1}}
    body = {"apiVersion": f"{GROUP}/v1", "kind": "ComputeClass", "metadata": {"name": "gpu"}}
    body["spec"] = {"priorities": [{**machine, "spot": True}, machine], "nodePoolAutoCreation": {"enabled": True}}
    eventually(lambda: any(each.name == PLURAL for each in _resources(api)))
    objects.create_cluster_custom_object(GROUP, "v1", PLURAL, body)
    at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    suspended = {"type": "ProvisioningSuspended", "status": "True", "message": NO_SPOT, "lastTransitionTime": at}
    status = {"status": {"priorityStatuses": [{"identifier": "0", "conditions": [suspended]}]}}
    objects.patch_cluster_custom_object_status(GROUP, "v1", PLURAL, "gpu", status, **MERGE)
    yield
    kinds.delete_custom_resource_definition(f"{PLURAL}.{GROUP}")


def _resources(api: client.ApiClient) -> list[client.V1APIResource]:
    try:
        return list(client.CustomObjectsApi(api).get_api_resources(GROUP, "v1").resources)
    except client.ApiException:
        return []  # the API server has not begun to serve the group


@pytest.mark.nightly
@pytest.mark.usefixtures("compute_class")
def test_a_night_from_nothing_to_nothing(gpu_sandbox: Sandbox) -> None:
    asked = "cluster-autoscaler grew nap-gpu-grp 0->1"
    short = f"GKE: ComputeClass gpu, priority 0: {NO_SPOT}"
    with (
        capture_logs() as logs,
        Provisioner(
            gpu_sandbox, GKE, boots=lambda: is_told(logs, asked), goes=lambda: is_told(logs, *LEAVING)
        ) as there,
    ):
        results = one_night(pool_of("compute-class", GKE))
        assert there.nodes == []
        assert len(there.brought) == 1
    assert results["device_plugin"]["change"] == "unchanged"
    assert results["scale_down"] == {**results["scale_down"], "nodes": 0, "desired": 0, "kept": []}
    assert is_told(logs, short)
