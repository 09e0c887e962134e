"""The policies and roles of docs/iam, with their placeholders filled in as docs/iam.md tells a reader to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from gpu_sandbox.audit_log import RoleUse
from gpu_sandbox.sandbox import Sandbox

IAM = Path(__file__).parents[2] / "docs" / "iam"
_PLACEHOLDER = re.compile(
    r"\b(?:REGION|ACCOUNT|CLUSTER|NODE_ROLE|NODE_GROUP|ASG_NAME|POOL|LAUNCH_TEMPLATE|TAG|role/AIRFLOW)\b"
)


def policy(*files: str, without: Sequence[str] = (), **values: str | Sequence[str]) -> dict[str, Any]:
    """Return the statements of these files as one policy.

    `values` are by placeholder; several of one stand each in a line of its own. `without` are actions to leave out.
    """
    lists = {name: [value] if isinstance(value, str) else list(value) for name, value in values.items()}
    if airflow := lists.pop("AIRFLOW", None):
        lists["role/AIRFLOW"] = airflow
    statements = [each for file in files for each in json.loads((IAM / file).read_text())["Statement"]]
    for statement in statements:
        statement["Action"] = [action for action in statement["Action"] if action not in without]
    return {"Version": "2012-10-17", "Statement": [_filled(each, lists) for each in statements if each["Action"]]}


def of_cluster(sandbox: Sandbox, *pools: str) -> dict[str, str | Sequence[str]]:
    """Return the values for these pools of the sandbox's cluster."""
    return {
        "REGION": sandbox.region,
        "ACCOUNT": sandbox.aws.account_id,
        "CLUSTER": sandbox.cluster_name,
        "NODE_ROLE": sandbox.node_role_arn.rpartition("/")[2],
        "POOL": pools,
    }


def google_role(file: str) -> list[str]:
    """Return the permissions of a custom role."""
    return list(json.loads((IAM / file).read_text())["includedPermissions"])


FULL_ROLES = ("full.yaml", "device-plugin.yaml")
"""The files of docs/rbac for pools that this package owns, where it installs the device plugin."""


def role_manifests(*files: str) -> list[dict[str, Any]]:
    """Return what files of docs/rbac have."""
    return [each for file in files for each in yaml.safe_load_all((IAM.parent / "rbac" / file).read_text())]


def rbac(*files: str) -> set[RoleUse]:
    """Return all that the roles of files of docs/rbac allow."""
    manifests = role_manifests(*files)
    return {
        RoleUse(f"{manifest['kind']} {manifest['metadata']['name']}", verb, resource)
        for manifest in manifests
        for rule in manifest.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _filled(value: Any, values: Mapping[str, Sequence[str]]) -> Any:
    if isinstance(value, Mapping):
        return {_lines(key, values)[0]: _filled(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [one for each in value for one in _lines(each, values)]
    lines = _lines(value, values)
    return lines[0] if len(lines) == 1 else lines


def _lines(text: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    names = [name for name in dict.fromkeys(_PLACEHOLDER.findall(text)) if values.get(name)]
    filled = []
    for chosen in product(*(values[name] for name in names)):
        of = dict(zip(names, chosen, strict=True))
        filled.append(_PLACEHOLDER.sub(lambda match, of=of: of.get(match[0], match[0]), text))  # type: ignore[misc]
    return filled
