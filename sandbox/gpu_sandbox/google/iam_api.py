"""The Service Account Credentials API, `iamcredentials.googleapis.com/v1`: tokens of accounts that others act as."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gpu_sandbox.google.errors import invalid, not_found
from gpu_sandbox.google.http_server import Call, Route, route
from gpu_sandbox.google.identities import Identities


class IamApi:
    """Answers generateAccessToken, for accounts of the project. Delegates are taken for good."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities

    def routes(self) -> list[Route]:
        operation = "iamcredentials:GenerateAccessToken"
        template = "/v1/projects/-/serviceAccounts/{email}:generateAccessToken"
        return [route(operation, "POST", template, self._generate)]

    def _generate(self, call: Call) -> dict[str, Any]:
        scopes = call.body.get("scope") or []
        if not scopes:
            raise invalid("Request contains an invalid argument.")
        issued = self._identities.impersonate(call.path["email"], scopes)
        if issued is None:
            raise not_found("Not found; Gaia id not found for email {}".format(call.path["email"]))
        token, until = issued
        return {"accessToken": token, "expireTime": datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
