"""AWS by one Airflow connection: clients, paginated reads, and the EKS token. Raises errors of ours only.

Where AWS refuses the credentials, the connection is read again, once for each refusal: see `from_connection`.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any

import boto3
from airflow.providers.amazon.aws.hooks.eks import EksHook
from botocore.config import Config
from botocore.exceptions import NoCredentialsError
from botocore.loaders import Loader
from botocore.model import ServiceId
from botocore.signers import RequestSigner

from airflow_gpu_provider.clouds.aws.errors import mapped_errors
from airflow_gpu_provider.clouds.from_connection import FromConnection, check_header_text, with_readable_extra
from airflow_gpu_provider.cluster.api.clock import ahead
from airflow_gpu_provider.cluster.api.connection_errors import unlogged
from airflow_gpu_provider.cluster.api.threads import AT_ONCE
from airflow_gpu_provider.errors import ConnectionNotFound, CredentialsError
from airflow_gpu_provider.parse_errors import problem_of

# Five tries wait 15 s at most: longer would outlive the pool's lock, under which sizes are written.
_CONFIG = Config(
    retries={"mode": "standard", "total_max_attempts": 5},
    connect_timeout=5,
    read_timeout=30,
    max_pool_connections=AT_ONCE,
)
# For what a run goes on without: one try, and not for long.
_ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=3, read_timeout=5)
_TOKEN_URL_SECONDS = 60  # as aws eks get-token has it; EKS takes the token for 15 minutes all the same

# One for all sessions of the process: each would parse, and keep, megabytes of service models, and a triggerer has a
# session for each waiting trigger.
_LOADER = Loader()


# By the beginning of a region's name: the endpoint of the AWS Price List for it (botocore's endpoints.json); each knows
# the prices of all regions of its partition.
_PRICE_LISTS = {
    "cn-": "cn-northwest-1",
    "eusc-": "eusc-de-east-1",
    "us-gov-": "",
    "us-iso": "",
    "eu-iso": "",
    "eu-": "eu-central-1",
    "il-": "eu-central-1",
    "me-": "eu-central-1",
    "af-": "eu-central-1",
    "ap-": "ap-south-1",
}


def price_list_region(region: str) -> str:
    """Return the region of the AWS Price List's endpoint for a region; empty where the partition has none."""
    return next((found for begin, found in _PRICE_LISTS.items() if region.startswith(begin)), "us-east-1")


def tags_of(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of something as EC2 and EC2 Auto Scaling describe it."""
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}


def instances(ec2: AwsService, **which: Any) -> Iterator[Mapping[str, Any]]:
    """Yield instances as DescribeInstances shows them."""
    for reservation in ec2.items("describe_instances", "Reservations", **which):
        yield from reservation["Instances"]


class _Hook(EksHook):
    """Airflow's hook, but for a connection whose extra cannot be read: it is an error."""

    @classmethod
    def get_connection(cls, conn_id: str) -> Any:
        return with_readable_extra(super().get_connection(conn_id))


class _Session:
    """What one look-up of the connection gave, and the clients that were made of it."""

    def __init__(self, hook: _Hook, session: boto3.session.Session, region: str) -> None:
        self._hook = hook
        self._session = session
        self._region = region
        self._lock = threading.RLock()
        self._clients: dict[tuple[str, str, bool], Any] = {}

    @property
    def events(self) -> Any:
        return self._session.events

    def client(self, name: str, *, region: str = "", once: bool = False) -> Any:
        """Return boto3's client of a service, in the pool's region if no other is named; `once`: for one short try."""
        with self._lock:
            key = (name, region, once)
            if key not in self._clients:
                # What the connection says in config_kwargs comes before our own settings.
                config = _CONFIG.merge(self._hook.config)
                self._clients[key] = self._session.client(
                    name,
                    region_name=region or self._region,
                    endpoint_url=self._hook.conn_config.get_service_endpoint_url(name),
                    config=config.merge(_ONCE) if once else config,
                    verify=self._hook.verify,
                )
            return self._clients[key]

    @property
    def credentials(self) -> Any:
        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        return credentials

    @property
    def sts_url(self) -> str:
        """The regional endpoint, which is the only one that EKS takes, unless the connection names its own."""
        endpoint = str(self.client("sts").meta.endpoint_url)
        if endpoint == "https://sts.amazonaws.com":
            endpoint = f"https://sts.{self._region}.amazonaws.com"
        return f"{endpoint}/?Action=GetCallerIdentity&Version=2011-06-15"


class AwsService:
    """One AWS service. `call` takes boto3's method name, `items` yields the items of a paginated one.

    Args:
        service: Its prefix in IAM.
        client: Returns boto3's client for it.
        connection: Where the credentials come from, for messages.
    """

    def __init__(
        self, sessions: FromConnection[_Session], *, service: str, client: Callable[[_Session], Any], connection: str
    ) -> None:
        self._sessions = sessions
        self._service = service
        self._client = client
        self._connection = connection
        self._ahead = timedelta(0)

    def now(self) -> datetime:
        """Return the service's time, by its last answer: machines that leave each other marks there may be apart."""
        return datetime.now(UTC) + self._ahead

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        def once(session: _Session) -> dict[str, Any]:
            with self._mapped():
                answer: dict[str, Any] = getattr(self._client(session), method)(**params)
            return answer

        answer = self._sessions.call(once)
        self._note_time(answer)
        return answer

    def items(self, method: str, key: str, **params: Any) -> Iterator[Any]:
        """Yield the items of all pages; what is refused in between is not begun again."""
        session, is_begun = self._sessions.get(), False
        try:
            for page in self._pages(session, method, params):
                is_begun = True
                yield from page[key]
            return
        except CredentialsError:
            again = self._sessions.read_again(session)
            if is_begun or again is session:
                raise
        for page in self._pages(again, method, params):
            yield from page[key]

    def _pages(self, session: _Session, method: str, params: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        with self._mapped():
            for page in self._client(session).get_paginator(method).paginate(**params):
                self._note_time(page)
                yield page

    def _note_time(self, answer: Mapping[str, Any]) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self._ahead = ahead(headers.get("date"), datetime.now(UTC), 0.0) or timedelta(0)

    def _mapped(self) -> Any:
        return mapped_errors(service=self._service, connection=self._connection)


class AwsClients:
    """The services of one region, all by what one Airflow connection gives.

    A connection that is named but does not exist is an error: AwsBaseHook would take whatever credentials the
    worker happens to have. `conn_id=None` asks for just those.
    """

    def __init__(self, *, conn_id: str | None, region: str) -> None:
        self._conn_id = conn_id
        self._region = region
        self._sessions = FromConnection(self._open)

    @property
    def connection(self) -> str:
        """Where the credentials come from, for messages."""
        return f"connection {self._conn_id!r}" if self._conn_id else "the worker's own AWS configuration"

    @cached_property
    def eks(self) -> AwsService:
        return self._service("eks")

    @cached_property
    def autoscaling(self) -> AwsService:
        return self._service("autoscaling")

    @cached_property
    def ec2(self) -> AwsService:
        return self._service("ec2")

    @cached_property
    def service_quotas(self) -> AwsService:
        return self._service("servicequotas", client="service-quotas")

    @cached_property
    def ssm(self) -> AwsService:
        return self._service("ssm")

    @cached_property
    def iam(self) -> AwsService:
        return self._service("iam")

    @cached_property
    def sts(self) -> AwsService:
        return self._service("sts")

    @cached_property
    def pricing(self) -> AwsService:
        """The AWS Price List, tried once; it has endpoints in few regions."""
        return self._service("pricing", region=price_list_region(self._region), once=True)

    @cached_property
    def ec2_once(self) -> AwsService:
        return self._service("ec2", once=True)

    def read_connection_again(self) -> None:
        """Have the next calls made with what the connection holds now: a cluster has refused what came from it."""
        self._sessions.read_again()

    def cluster_token(self, cluster_name: str) -> str:
        """Return a new bearer token for the cluster's API server; it lives 15 minutes. Makes no call to AWS.

        The same as `aws eks get-token`, which the provider's exec plugin runs in a process of its own.
        """
        return self._sessions.call(lambda session: self._token(session, cluster_name))

    def _token(self, session: _Session, cluster_name: str) -> str:
        with self._mapped("sts"):
            signer = RequestSigner(ServiceId("sts"), self._region, "sts", "v4", session.credentials, session.events)
            request = {
                "method": "GET",
                "url": session.sts_url,
                "body": {},
                "headers": {"x-k8s-aws-id": cluster_name},
                "context": {},
            }
            with unlogged("botocore.auth"):  # at DEBUG it logs what it signs, and the signature; both are the token
                url: str = signer.generate_presigned_url(
                    request, region_name=self._region, expires_in=_TOKEN_URL_SECONDS, operation_name=""
                )
        return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")

    def _open(self) -> _Session:
        hook = _Hook(aws_conn_id=self._conn_id, region_name=self._region)
        try:
            config = hook.conn_config
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise CredentialsError(
                f"{self.connection} cannot be read: {problem_of(error)}.",
                'Correct its extra: see "Amazon Web Services Connection" in the Amazon provider\'s documentation.',
            ) from None
        if self._conn_id and not config:
            otherwise = "; aws_conn_id=None uses the worker's own credentials"
            raise ConnectionNotFound.named(self._conn_id, "aws_conn_id", otherwise)
        check_header_text(config.aws_access_key_id or "", "aws_access_key_id", self._conn_id)
        check_header_text(config.aws_session_token or "", "aws_session_token", self._conn_id)
        with self._mapped("sts"):
            session = hook.get_session(region_name=self._region)
        session._session.register_component("data_loader", _LOADER)
        return _Session(hook, session, self._region)

    def _service(self, name: str, *, client: str = "", region: str = "", once: bool = False) -> AwsService:
        """Return a service by its prefix in IAM; `client` is boto3's name for it, where that is another."""
        make = partial(_Session.client, name=client or name, region=region, once=once)
        return AwsService(self._sessions, service=name, client=make, connection=self.connection)

    def _mapped(self, service: str) -> Any:
        return mapped_errors(service=service, connection=self.connection)
