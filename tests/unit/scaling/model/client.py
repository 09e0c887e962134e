"""ActorsClient: an actor's way to the API server. Others go on before each request; it or its answer may get lost."""

from __future__ import annotations

from functools import partial
from typing import Any

from urllib3.exceptions import ProtocolError

from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.fakes.objects import Raw
from tests.unit.scaling.model.actors import Actors


class ActorsClient(FakeApiClient):
    def __init__(self, server: ApiServer, actors: Actors) -> None:
        super().__init__(server)
        self._actors = actors

    def call_api(self, path: str, method: str, **request: Any) -> Any:
        if not _writes_demand(method, request):
            self._actors.pause()
        send = partial(super().call_api, path, method, **request)
        return self._actors.request(send, lambda: ProtocolError("aborted"))


def _writes_demand(method: str, request: Raw) -> bool:
    """Say whether it comes right after the lock's check, as what is said to the cloud does (see ModelPlatform)."""
    return method in ("POST", "PUT") and str(request["body"]["metadata"].get("name")).startswith("demand-")
