"""The API server's audit log: every request of callers that RBAC limits, and each write of all clients.

It shows which of their roles requests needed, and (`schemas.kubernetes`) how writes were validated. Nodes and the
control plane's own components are left out, by the audit policy.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from gpu_sandbox.schemas.kubernetes import judged_log

_WRITES = ["create", "update", "patch"]
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    # The first match counts.
    "rules": [
        {"level": "None", "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"]},
        {"level": "None", "users": ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"]},
        {"level": "None", "namespaces": ["kube-node-lease"]},
        {
            "level": "None",
            "verbs": _WRITES,
            "resources": [{"group": "", "resources": ["nodes/status", "pods/status", "events"]}],
        },
        {"level": "Metadata", "verbs": _WRITES},
        {"level": "None", "userGroups": ["system:masters", "system:serviceaccounts"]},
        {"level": "Metadata"},
    ],
}
# How RBAC puts it: allowed by RoleBinding "NAME/NAMESPACE" of Role "NAME" to Group "NAME"
_ROLE = re.compile(r' of (?P<role>(?:Cluster)?Role) "(?P<name>[^"]+)"')


@dataclass(frozen=True, order=True)
class RoleUse:
    """A request that a role allowed: `Role pods`, `list`, `pods/log`."""

    role: str
    verb: str
    resource: str


class AuditLog:
    """The log of one API server, in an existing folder."""

    def __init__(self, folder: Path) -> None:
        self._policy = folder / "audit-policy.json"
        self._log = judged_log() or folder / "audit.log"

    def flags(self) -> list[str]:
        """The API server's arguments, after the policy has been written."""
        self._policy.write_text(json.dumps(_POLICY))
        return [f"--audit-policy-file={self._policy}", f"--audit-log-path={self._log}"]

    def uses(self, user: str) -> frozenset[RoleUse]:
        """What this user's roles have been needed for so far."""
        uses = set()
        for line in self._log.read_text().splitlines() if self._log.exists() else ():
            event = json.loads(line)
            reason = event.get("annotations", {}).get("authorization.k8s.io/reason", "")
            match = _ROLE.search(reason)
            if event["user"].get("username") == user and match and "objectRef" in event:
                asked = event["objectRef"]
                resource = "/".join(filter(None, (asked.get("resource", ""), asked.get("subresource"))))
                uses.add(RoleUse(f"{match['role']} {match['name']}", event["verb"], resource))
        return frozenset(uses)
