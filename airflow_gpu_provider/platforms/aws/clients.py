"""AWS by one Airflow connection: clients, paginated reads, and the EKS token. Raises errors of ours only."""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import boto3
from airflow.providers.amazon.aws.hooks.eks import EksHook
from botocore.config import Config
from botocore.exceptions import NoCredentialsError
from botocore.loaders import Loader
from botocore.model import ServiceId
from botocore.signers import RequestSigner

from airflow_gpu_provider.api_calls import report_calls_to_aws
from airflow_gpu_provider.cluster.clock import ahead
from airflow_gpu_provider.cluster.threads import AT_ONCE
from airflow_gpu_provider.cluster.threads import in_parallel as in_parallel
from airflow_gpu_provider.errors import ConnectionNotFound
from airflow_gpu_provider.platforms.aws.errors import mapped_errors

# Five tries wait 15 s at most: longer would outlive the pool's lock, under which sizes are written.
_CONFIG = Config(
    retries={"mode": "standard", "total_max_attempts": 5},
    connect_timeout=5,
    read_timeout=30,
    max_pool_connections=AT_ONCE,
)
_TOKEN_URL_SECONDS = 60  # as aws eks get-token has it; EKS takes the token for 15 minutes all the same

# One for all sessions of the process: each would parse, and keep, megabytes of service models, and a triggerer has a
# session for each waiting trigger.
_LOADER = Loader()


class AwsService:
    """One AWS service. `call` takes boto3's method name, `items` yields the items of a paginated one."""

    def __init__(self, client: Any, *, service: str, connection: str) -> None:
        self._client = client
        self._service = service
        self._connection = connection
        self._ahead = timedelta(0)

    def now(self) -> datetime:
        """Return the service's time, by its last answer: machines that leave each other marks there may be apart."""
        return datetime.now(UTC) + self._ahead

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        with self._mapped():
            answer: dict[str, Any] = getattr(self._client, method)(**params)
        self._note_time(answer)
        return answer

    def items(self, method: str, key: str, **params: Any) -> Iterator[Any]:
        with self._mapped():
            for page in self._client.get_paginator(method).paginate(**params):
                self._note_time(page)
                yield from page[key]

    def _note_time(self, answer: Mapping[str, Any]) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self._ahead = ahead(headers.get("date"), datetime.now(UTC), 0.0) or timedelta(0)

    def _mapped(self) -> Any:
        return mapped_errors(service=self._service, connection=self._connection)


class AwsClients:
    """The services of one region, all through one look-up of the Airflow connection.

    A connection that is named but does not exist is an error: AwsBaseHook would take whatever credentials the
    worker happens to have. `conn_id=None` asks for just those.
    """

    def __init__(self, *, conn_id: str | None, region: str) -> None:
        self._conn_id = conn_id
        self._region = region

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
    def iam(self) -> AwsService:
        return self._service("iam")

    @cached_property
    def sts(self) -> AwsService:
        return self._service("sts")

    def cluster_token(self, cluster_name: str) -> str:
        """Return a new bearer token for the cluster's API server; it lives 15 minutes. Makes no call to AWS.

        The same as `aws eks get-token`, which the provider's exec plugin runs in a process of its own.
        """
        with mapped_errors(service="sts", connection=self.connection):
            signer = RequestSigner(
                ServiceId("sts"), self._region, "sts", "v4", self._credentials(), self._session.events
            )
            request = {
                "method": "GET",
                "url": self._sts_url,
                "body": {},
                "headers": {"x-k8s-aws-id": cluster_name},
                "context": {},
            }
            with _unlogged("botocore.auth"):
                url: str = signer.generate_presigned_url(
                    request, region_name=self._region, expires_in=_TOKEN_URL_SECONDS, operation_name=""
                )
        return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")

    def _credentials(self) -> Any:
        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        return credentials

    @cached_property
    def _hook(self) -> EksHook:
        hook = EksHook(aws_conn_id=self._conn_id, region_name=self._region)
        if self._conn_id and not hook.conn_config:
            otherwise = "; aws_conn_id=None uses the worker's own credentials"
            raise ConnectionNotFound.named(self._conn_id, "aws_conn_id", otherwise)
        return hook

    @cached_property
    def _session(self) -> boto3.session.Session:
        with mapped_errors(service="sts", connection=self.connection):
            session = self._hook.get_session(region_name=self._region)
        session._session.register_component("data_loader", _LOADER)
        report_calls_to_aws(session.events)
        return session

    @cached_property
    def _sts_url(self) -> str:
        """The regional endpoint, which is the only one that EKS takes, unless the connection names its own."""
        endpoint = str(self._client("sts").meta.endpoint_url)
        if endpoint == "https://sts.amazonaws.com":
            endpoint = f"https://sts.{self._region}.amazonaws.com"
        return f"{endpoint}/?Action=GetCallerIdentity&Version=2011-06-15"

    def _service(self, name: str, *, client: str = "") -> AwsService:
        """Return a service by its prefix in IAM; `client` is boto3's name for it, where that is another."""
        with mapped_errors(service=name, connection=self.connection):
            return AwsService(self._client(client or name), service=name, connection=self.connection)

    def _client(self, name: str) -> Any:
        return self._session.client(
            name,
            endpoint_url=self._hook.conn_config.get_service_endpoint_url(name),
            # What the connection says in config_kwargs comes before our own settings.
            config=_CONFIG.merge(self._hook.config),
            verify=self._hook.verify,
        )


@contextmanager
def _unlogged(name: str) -> Iterator[None]:
    """Drop what this thread logs there: at DEBUG botocore logs what it signs, and the signature; both are the token."""
    this, logger = threading.get_ident(), logging.getLogger(name)

    def of_other_threads(record: logging.LogRecord) -> bool:
        return record.thread != this

    logger.addFilter(of_other_threads)
    try:
        yield
    finally:
        logger.removeFilter(of_other_threads)
