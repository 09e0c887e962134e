"""KubernetesGpuPool and placement: what the spec refuses and knows, that it survives its JSON, what manifests get."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool, placement
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.errors import PoolSpecError


def pool(**fields: Any) -> KubernetesGpuPool:
    return KubernetesGpuPool(**{"name": "lab", "nodes": ["gpu-1", "gpu-2"], **fields})


BY_LABELS = {"nodes": [], "node_selector_labels": {"karpenter.sh/nodepool": "gpu"}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"nodes": []}, "one of nodes and node_selector_labels"),
        ({"node_selector_labels": {"gpus": "true"}}, "one of nodes and node_selector_labels"),
        ({"nodes": ["gpu_1"]}, "names of nodes"),
        ({"nodes": ["gpu-1", "gpu-1"]}, "each once"),
        ({"nodes": [], "node_selector_labels": {"gpus": True}}, "valid Kubernetes labels"),
        ({"nodes": [], "node_selector_labels": {"airflow-gpu-provider/pool": "lab"}}, "the package sets it"),
        ({"gpus_per_node": 0}, "at least 1"),
        ({"gpus_per_node": "four"}, "not a whole number"),
        ({"max_nodes": 3}, "there are 2 nodes"),
        ({"min_nodes": 1}, "the nodes stay anyway"),
        ({"taints": ["gpu"]}, "is not a taint"),
        ({"cordon_when_idle": "yes"}, "True or False"),
        ({"kubernetes_conn_id": ""}, "an Airflow connection"),
        ({"manage": "scale"}, '"full"'),
        ({"provisioner": "magic"}, "one of"),
        ({"provisioner": "compute-class", "nodes": [], "node_selector_labels": None}, "adds nodes by labels"),
        ({"provisioner": "karpenter"}, "adds nodes by labels"),
        ({"provisioner": "karpenter", "nodes": []}, "adds nodes by labels"),
        ({"provisioner": "autopilot", **BY_LABELS, "node_labels": {"a": "b"}}, "cannot be given to nodes"),
        ({"provisioner": "compute-class", **BY_LABELS}, "pods that select a ComputeClass"),
        (
            {
                "provisioner": "compute-class",
                "nodes": [],
                "node_selector_labels": {"cloud.google.com/compute-class": ""},
            },
            "pods that select a ComputeClass",
        ),
        ({"provisioner": "auto-mode", **BY_LABELS, "cordon_when_idle": True}, "removes idle nodes"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError, match=says):
        pool(**fields)


def test_it_survives_its_json() -> None:
    spec = pool(taints=["nvidia.com/gpu=true:NoSchedule"], gpus_per_node=4, cordon_when_idle=True)
    assert deserialize_pool(json.loads(json.dumps(spec.serialize()))) == spec


def test_all_nodes_may_be_wanted_and_nothing_is_tainted_by_default() -> None:
    assert (pool().max_nodes, pool().taints) == (2, ())
    assert pool(nodes=[], node_selector_labels={"gpus": "true"}).max_nodes > 1000
    assert pool(nodes="{{ params.nodes }}").max_nodes > 1000


@pytest.mark.parametrize(
    ("fields", "gpus", "nodes"),
    [
        ({"gpus_per_node": 4}, 5, 2),
        ({}, 1, 1),
        ({}, 8, 2),  # how many GPUs a node has is not known: all nodes there are
        ({"nodes": [], "node_selector_labels": {"gpus": "true"}}, 1, 1),
    ],
)
def test_nodes_for_gpus(fields: dict[str, Any], gpus: int, nodes: int) -> None:
    assert pool(**fields).nodes_for(gpus=gpus, nodes=None) == nodes


def test_gpus_of_chosen_nodes_cannot_be_guessed() -> None:
    with pytest.raises(PoolSpecError, match="Give nodes="):
        pool(nodes=[], node_selector_labels={"gpus": "true"}).nodes_for(gpus=2, nodes=None)


def test_placement_is_plain_data_for_any_manifest() -> None:
    put = placement(pool(taints=["team=ml:NoSchedule"]), gpus=2)
    assert json.loads(json.dumps(put.pod_spec)) == {
        "nodeSelector": {"airflow-gpu-provider/pool": "lab"},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},
        ],
    }
    assert put.limits == {"nvidia.com/gpu": "2"}
    assert put.warning == ""


@pytest.mark.parametrize(
    ("price", "cost"), [(None, "idle, unless"), (4.0, "idle, 3.00 of the node's 4.00 EUR an hour, unless")]
)
def test_gpus_that_a_pod_leaves_idle_are_named_with_their_cost(price: float | None, cost: str) -> None:
    spec = EksGpuPool(
        name="train",
        cluster_name="ml",
        region="us-west-2",
        instance_types=("g6.12xlarge",),
        max_nodes=1,
        price_per_hour=price,
        currency="EUR",
    )
    warning = placement(spec, gpus=1).warning
    assert warning.startswith("A pod with 1 of the 4 GPUs of its node leaves 3 ")
    assert re.search(cost, warning)
    assert placement(spec, gpus=4).warning == ""


def test_pods_select_nodes_of_a_provisioner_by_its_own_labels() -> None:
    spec = pool(provisioner="karpenter", **BY_LABELS, taints=["team=ml:NoSchedule"])
    put = placement(spec, gpus=1)
    assert put.node_selector == {"karpenter.sh/nodepool": "gpu"}
    assert {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"} in put.tolerations
    assert (spec.nodes_come_with_pods, pool().nodes_come_with_pods) == (True, False)
    assert deserialize_pool(json.loads(json.dumps(spec.serialize()))) == spec


def test_placement_refuses_what_it_cannot_place() -> None:
    for none in (0, -1, 1.5, True, "many", None):
        with pytest.raises(PoolSpecError, match="at least one"):
            placement(pool(), gpus=cast("Any", none))
    with pytest.raises(PoolSpecError, match="Jinja"):
        placement(pool(name="{{ params.pool }}"), gpus=1)
    with pytest.raises(PoolSpecError, match="taints of the spec is a Jinja"):
        placement(pool(taints="{{ params.taints }}"), gpus=1)
    # Where the cluster is makes no difference to a manifest.
    elsewhere = EksGpuPool(
        name="train", cluster_name="{{ var.value.c }}", region="us-west-2", instance_types="g6.xlarge", max_nodes=1
    )
    assert placement(elsewhere, gpus=1).limits == {"nvidia.com/gpu": "1"}
    with pytest.raises(PoolSpecError, match=r"gpus=2, but the largest machine of pool train has 1"):
        placement(elsewhere, gpus=2)  # its pods would wait for ever
