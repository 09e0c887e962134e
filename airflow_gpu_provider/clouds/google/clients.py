"""Google Cloud by one Airflow connection: GKE's and Compute Engine's calls, and the cluster's token.

Raises errors of ours only. GKE is called through its client library; Compute Engine by plain REST, for its library
takes 100 MB and seconds of CPU to import, in each task and each triggerer. Where Google refuses the credentials, the
connection is read again, once for each refusal: see `from_connection`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import requests
from airflow.providers.google.common.consts import CLIENT_INFO
from airflow.providers.google.common.hooks.base_google import GoogleBaseHook, get_field
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
from google.api_core import exceptions as api
from google.api_core.retry import Retry
from google.auth.credentials import Scoped
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud.container_v1 import ClusterManagerClient

from airflow_gpu_provider.clouds.from_connection import FromConnection, with_readable_extra
from airflow_gpu_provider.clouds.google.errors import is_worth_a_retry, mapped_errors
from airflow_gpu_provider.errors import ConnectionNotFound, CredentialsError, GpuError
from airflow_gpu_provider.parse_errors import problem_of

_GKE_TIMEOUT = 30.0
_TIMEOUT = 10.0
# Tries of 15 seconds in all, and the last one's timeout: longer would outlive the pool's lock of 30 seconds, under
# which sizes are written.
_RETRY = Retry(
    predicate=is_worth_a_retry,
    initial=0.5,
    maximum=4.0,
    multiplier=2.0,
    timeout=15.0,
)
_EMAIL_SCOPE = "https://www.googleapis.com/auth/userinfo.email"
_POOLED_CONNECTIONS = 8
_RENEW_BEFORE = timedelta(minutes=15)  # ClusterAccess keeps a token for ten minutes


class _Hook(GoogleBaseHook):
    """Airflow's hook, but for a connection whose extra cannot be read: it is an error."""

    @classmethod
    def get_connection(cls, conn_id: str) -> Any:
        return with_readable_extra(super().get_connection(conn_id))


class _Account:
    """What one look-up of the connection gave, and what was made of it."""

    def __init__(self, hook: _Hook, credentials: Any) -> None:
        self.hook = hook
        self.credentials = credentials
        self._token_lock = threading.RLock()  # a signal handler, which may interrupt a refresh, makes requests too

    def endpoint(self, field: str) -> str | None:
        """Return an endpoint that the connection names."""
        return get_field(self.hook.extras, field)

    @cached_property
    def gke(self) -> ClusterManagerClient:
        return ClusterManagerClient(
            credentials=self.credentials,
            # REST, not gRPC: its threads do not survive the forks of an Airflow worker.
            transport="rest",
            client_info=CLIENT_INFO,
            client_options=self.hook.get_client_options(api_endpoint_override=self.endpoint("gke_endpoint")),
        )

    @cached_property
    def session(self) -> Any:
        session = AuthorizedSession(self.credentials)  # type: ignore[no-untyped-call]
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=_POOLED_CONNECTIONS)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        return session

    def token(self, *, refused: str) -> str:
        """Return a token as GoogleClients.access_token does."""
        with self._token_lock:
            if not _is_fresh(self.credentials) or self.credentials.token == refused:
                self.credentials.refresh(Request())
        return str(self.credentials.token)


class Gke:
    """GKE's API. Requests and answers are dictionaries in the client library's words."""

    def __init__(self, accounts: FromConnection[_Account], *, connection: str) -> None:
        self._accounts = accounts
        self._connection = connection

    def call(self, method: str, *, permission: str, **request: Any) -> dict[str, Any]:
        def once(account: _Account) -> Any:
            with mapped_errors(call=permission, connection=self._connection):
                return getattr(account.gke, method)(request=request, retry=_RETRY, timeout=_GKE_TIMEOUT)

        answer = self._accounts.call(once)
        found: dict[str, Any] = type(answer).to_dict(answer, use_integers_for_enums=False)
        return found


class Rest:
    """One of Google's APIs by plain REST. `path` comes after the API's version; answers are as the API gives them.

    Args:
        base: Returns the API's address.
        connection: Where the credentials come from, for messages.
        once: Try each request once. Default False: again, for some seconds.
    """

    def __init__(
        self,
        accounts: FromConnection[_Account],
        *,
        base: Callable[[_Account], str],
        connection: str,
        once: bool = False,
    ) -> None:
        self._accounts = accounts
        self._base = base
        self._connection = connection
        self._once = once

    def get(self, path: str, *, permission: str, **query: Any) -> dict[str, Any]:
        return self._send("GET", path, permission, params=query)

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, permission: str, **query: Any
    ) -> dict[str, Any]:
        return self._send("POST", path, permission, params=query, json=body or {})

    def items(
        self, path: str, key: str, *, permission: str, method: str = "GET", **query: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the items of all pages."""
        page = ""
        while True:
            more = {"pageToken": page} if page else {}
            answer = self._send(method, path, permission, params={**query, **more})
            yield from answer.get(key, [])
            page = answer.get("nextPageToken", "")
            if not page:
                return

    def _send(self, method: str, path: str, permission: str, **how: Any) -> dict[str, Any]:
        def once(account: _Account) -> dict[str, Any]:
            response = account.session.request(method, f"{self._base(account)}/{path}", timeout=_TIMEOUT, **how)
            if not response.ok:
                raise api.from_http_response(response)  # type: ignore[no-untyped-call]
            answer: dict[str, Any] = response.json()
            return answer

        def with_retries(account: _Account) -> dict[str, Any]:
            with mapped_errors(call=permission, connection=self._connection):
                answer: dict[str, Any] = once(account) if self._once else _RETRY(once)(account)
            return answer

        return self._accounts.call(with_retries)


class GoogleClients:
    """The services of Google Cloud that a pool takes, all by what one Airflow connection gives.

    The connection's extra may name other endpoints, for private access: `gke_endpoint`, `compute_endpoint`,
    `resource_manager_endpoint` and `billing_endpoint`.
    """

    def __init__(self, *, conn_id: str, impersonation_chain: str | Sequence[str] | None) -> None:
        self._conn_id = conn_id
        self._impersonation_chain = impersonation_chain
        self._accounts = FromConnection(self._open)

    @property
    def connection(self) -> str:
        """Where the credentials come from, for messages."""
        return f"connection {self._conn_id!r}"

    @cached_property
    def gke(self) -> Gke:
        return Gke(self._accounts, connection=self.connection)

    @cached_property
    def compute(self) -> Rest:
        return self._rest("compute_endpoint", "compute", "compute/v1")

    @cached_property
    def resource_manager(self) -> Rest:
        return self._rest("resource_manager_endpoint", "cloudresourcemanager", "v1")

    @cached_property
    def billing(self) -> Rest:
        """The Cloud Billing API, each request tried once: what it answers, a run goes on without."""
        return self._rest("billing_endpoint", "cloudbilling", "v1", once=True)

    def _rest(self, field: str, service: str, version: str, *, once: bool = False) -> Rest:
        universe = os.environ.get("GOOGLE_CLOUD_UNIVERSE_DOMAIN") or "googleapis.com"

        def base(account: _Account) -> str:
            endpoint = account.endpoint(field) or f"https://{service}.{universe}"
            return f"{endpoint.rstrip('/')}/{version}"

        return Rest(self._accounts, base=base, connection=self.connection, once=once)

    @property
    def identity(self) -> str:
        """Whose credentials they are: a service account's address, where the credentials say one."""
        credentials = self._accounts.get().credentials
        return str(getattr(credentials, "service_account_email", None) or self.connection)

    def read_connection_again(self) -> None:
        """Have the next calls made with what the connection holds now: a cluster has refused what came from it."""
        self._accounts.read_again()

    def access_token(self, *, refused: str = "") -> str:
        """Return a bearer token for the cluster's API server that is good for a quarter of an hour at least.

        It is another one than `refused`, whatever the credentials say of that one's age.
        """

        def token(account: _Account) -> str:
            with mapped_errors(call="iam.serviceAccounts.getAccessToken", connection=self.connection):
                return account.token(refused=refused)

        return self._accounts.call(token)

    def _open(self) -> _Account:
        with mapped_errors(call="iam.serviceAccounts.getAccessToken", connection=self.connection), self._readable():
            hook = _Hook(gcp_conn_id=self._conn_id, impersonation_chain=self._impersonation_chain)
            return _Account(hook, _telling_the_email(hook.get_credentials(), hook.scopes))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Raise what the hook finds wrong with the connection as an error of ours."""
        try:
            yield
        except AirflowNotFoundException as error:
            raise ConnectionNotFound.named(self._conn_id, "gcp_conn_id") from error
        except GpuError:
            raise
        except AirflowException as error:  # the hook's own sentences
            raise self._unreadable(str(error).rstrip(".")) from None
        except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
            # cryptography reports a key that it cannot read as a ValueError, the hook one of another type as any.
            raise self._unreadable(f"its key cannot be read ({problem_of(error)})") from None

    def _unreadable(self, why: str) -> CredentialsError:
        return CredentialsError(
            f"The Airflow connection {self._conn_id!r} provides no Google Cloud credentials: {why}.",
            "Correct it, or name another in gcp_conn_id.",
        )


def _telling_the_email(credentials: Any, scopes: Sequence[str]) -> Any:
    """Have the account's email in its tokens: without it GKE knows the account by its unique id alone.

    A role that is bound to the email then gives nothing (GKE's docs on RBAC). Credentials whose scopes were fixed when
    they were made, a person's say, stay as they are.
    """
    if not isinstance(credentials, Scoped):
        return credentials
    return credentials.with_scopes([*scopes, _EMAIL_SCOPE])  # type: ignore[no-untyped-call]


def _is_fresh(credentials: Any) -> bool:
    if not credentials.token:
        return False
    if credentials.expiry is None:
        return True
    left: timedelta = credentials.expiry.replace(tzinfo=UTC) - datetime.now(UTC)
    return left > _RENEW_BEFORE
