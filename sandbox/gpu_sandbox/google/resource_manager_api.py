"""Cloud Resource Manager's API, `cloudresourcemanager.googleapis.com/v1`: what an account may do in the project."""

from __future__ import annotations

from typing import Any

from gpu_sandbox.google.http_server import Call, Route, route
from gpu_sandbox.google.permissions import Permissions


class ResourceManagerApi:
    """Answers testIamPermissions, which every account may ask of itself."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions

    def routes(self) -> list[Route]:
        operation, template = "resourcemanager:TestIamPermissions", "/v1/projects/{project}:testIamPermissions"
        return [route(operation, "POST", template, self._test)]

    def _test(self, call: Call) -> dict[str, Any]:
        asked = call.body.get("permissions", [])
        held = [each for each in asked if self._permissions.allow(call.caller, each)]
        return {"permissions": held} if held else {}
