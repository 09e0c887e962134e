"""What the doctor asks the API server about is what docs/rbac grants, by the file that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.reports.cluster_permissions import Rule, rules, to_install_a_plugin
from tests.unit.clouds.google.test_gke_pool import FLEX_START
from tests.unit.clouds.google.test_gke_pool import pool as gke_pool

ROLES = Path(__file__).parents[3] / "docs" / "rbac"
EKS: dict[str, Any] = {"name": "train", "cluster_name": "ml", "region": "us-west-2", "max_nodes": 1}
POOLS: tuple[GpuPool, ...] = (
    EksGpuPool(**EKS, instance_types=["g6.xlarge"]),
    EksGpuPool(**EKS, instance_types=["g6.xlarge"], scaling="autoscaler"),
    EksGpuPool(**EKS, manage="scale", node_groups=["of-terraform"]),
    KubernetesGpuPool(
        name="brought", provisioner="karpenter", node_selector_labels={"karpenter.sh/nodepool": "gpu"}, gpus_per_node=1
    ),
    KubernetesGpuPool(
        name="brought",
        provisioner="compute-class",
        node_selector_labels={"cloud.google.com/compute-class": "gpu"},
        gpus_per_node=1,
    ),
)


AUTOPILOT = KubernetesGpuPool(name="brought", provisioner="autopilot", node_selector_labels={"x": "y"}, gpus_per_node=1)


def test_nothing_of_kube_system_is_needed_where_the_platform_brings_the_plugin() -> None:
    assert all(rule.namespace != PLUGIN_NAMESPACE for rule in rules(AUTOPILOT, "default"))
    assert any(rule.namespace == PLUGIN_NAMESPACE for rule in rules(POOLS[0], "default"))


def granted(file: str) -> set[tuple[str, str, str, str]]:
    """Group, resource, verb and namespace of everything in the documented roles; in all namespaces: "*"."""
    found = set()
    for role in yaml.safe_load_all((ROLES / file).read_text()):
        if role["kind"] in ("Role", "ClusterRole"):
            namespace = role["metadata"].get("namespace", "*")
            found |= {
                (group, resource, verb, namespace)
                for rule in role["rules"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    return found


QUEUED = gke_pool(**FLEX_START, queued_provisioning=True)
ALL_RULES = dict.fromkeys(
    [*to_install_a_plugin(), *(rule for pool in (*POOLS, QUEUED) for rule in rules(pool, "default"))]
)


@pytest.mark.parametrize("rule", ALL_RULES, ids=str)
def test_the_documented_roles_grant_it(rule: Rule) -> None:
    for verb in rule.verbs:
        what = (rule.group, rule.resource, verb)
        places = {namespace for *each, namespace in granted(rule.roles) if tuple(each) == what}
        assert places & {"*", rule.namespace or "*"}, what


def test_a_pool_is_asked_about_what_its_kind_needs() -> None:
    direct, scaled, of_others, brought, by_class = (
        {(r.resource, r.roles) for r in rules(pool, "default")} for pool in POOLS
    )
    assert scaled - direct == {("configmaps", "autoscaler.yaml")}
    assert {roles for _, roles in of_others} == {"scale-only.yaml"}
    queued = {(rule.resource, rule.roles) for rule in rules(QUEUED, "default")}
    assert {roles for _, roles in queued - direct} == {"kueue.yaml"}
    assert {resource for resource, _ in brought - direct} == {"nodepools", "nodeclaims", "ec2nodeclasses"}
    assert {resource for resource, _ in by_class - direct} == {"computeclasses"}
