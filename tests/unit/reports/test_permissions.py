"""What the doctor asks the API server about is what docs/rbac grants."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from airflow_gpu_provider.reports.permissions import PLUGIN, Rule, rules

ROLES = Path(__file__).parents[3] / "docs" / "rbac" / "full.yaml"


def granted() -> list[tuple[str, str, str, str]]:
    """Group, resource, verb and namespace of everything in the documented roles."""
    found = []
    for role in yaml.safe_load_all(ROLES.read_text()):
        if role["kind"] in ("Role", "ClusterRole"):
            namespace = role["metadata"].get("namespace", "")
            found += [
                (group, resource, verb, namespace)
                for rule in role["rules"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            ]
    return found


@pytest.mark.parametrize("rule", [*rules("default"), PLUGIN], ids=str)
def test_the_documented_roles_grant_it(rule: Rule) -> None:
    for verb in rule.verbs:
        assert (rule.group, rule.resource, verb, rule.namespace) in granted()
