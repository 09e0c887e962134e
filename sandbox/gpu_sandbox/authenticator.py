"""The cloud's login: the API server asks it (TokenReview) for the identity behind a cloud token.

The cloud decides which identity a token proves; access entries decide which Kubernetes groups that identity has, as in
EKS. The account's own identity created the cluster, so it is an administrator.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from gpu_sandbox.loopback import LoopbackServer, Reply, Request

ADMINISTRATORS = ("system:masters",)

_log = logging.getLogger(__name__)


class Identity(Protocol):
    """An identity, as the cloud reports it."""

    @property
    def username(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def administers(self) -> bool: ...
    @property
    def extra(self) -> Mapping[str, list[str]]: ...


class Authenticator:
    """Serves TokenReview v1 at `url`, which cannot be guessed.

    `identify` returns None for a token that proves nothing: malformed, expired, for another cluster, signed by
    nobody known. `access_entries` maps a user name (an ARN, an e-mail address) to its Kubernetes groups and may be
    changed at any time (the API server keeps answers for its cache's time); one without an entry that `administers` the
    cluster by the cloud's word gets `default_groups`, which may be changed too.
    """

    def __init__(
        self,
        identify: Callable[[str], Identity | None],
        *,
        access_entries: dict[str, Sequence[str]] | None = None,
        default_groups: Sequence[str] = ADMINISTRATORS,
    ) -> None:
        self.access_entries: dict[str, Sequence[str]] = dict(access_entries or {})
        self._identify = identify
        self.default_groups = default_groups
        self._path = f"/{secrets.token_urlsafe(16)}"
        self._server = LoopbackServer(self._answer, name="sandbox-authenticator")
        self.url = self._server.url + self._path

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def _answer(self, request: Request) -> Reply:
        if request.path != self._path or request.method != "POST":
            return Reply(status=HTTPStatus.NOT_FOUND)
        review = request.body
        try:
            token = str(review["spec"]["token"])
        except (KeyError, TypeError):
            return Reply(status=HTTPStatus.BAD_REQUEST, body={"error": "not a TokenReview with a token"})
        return Reply(
            body={
                "apiVersion": review.get("apiVersion", "authentication.k8s.io/v1"),
                "kind": "TokenReview",
                "status": self._review(token),
            }
        )

    def _review(self, token: str) -> dict[str, Any]:
        try:
            identity = self._identify(token)
        except Exception as error:  # noqa: BLE001 - whatever it is, the API server must get an answer
            _log.exception("A token could not be checked")
            # With `error` the API server does not keep the answer, so the next call asks again.
            return {"authenticated": False, "error": repr(error)}
        if identity is None:
            return {"authenticated": False}
        otherwise = self.default_groups if identity.administers else ()
        return {
            "authenticated": True,
            "user": {
                "username": identity.username,
                "uid": identity.uid,
                "groups": list(self.access_entries.get(identity.username, otherwise)),
                "extra": dict(identity.extra),
            },
        }
