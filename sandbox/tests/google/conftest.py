"""A Google Cloud of its own for each test, with everything quick, and Google's own clients for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import pytest
from google.api_core.exceptions import from_http_response
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud.container_v1 import ClusterManagerClient, NodeConfig, NodePool, Operation
from google.oauth2 import service_account

from gpu_sandbox.faults import Faults
from gpu_sandbox.google import GoogleCloud, GoogleTimings, Identity, Instance

T = TypeVar("T")
CLUSTER = "k8s-ml"
QUICK = GoogleTimings(
    operation_pending=0.05,
    node_pool_create=0.1,
    node_pool_update=0.1,
    node_pool_resize=0.1,
    node_pool_delete=0.1,
    patience=0.3,
    group_reaction=0.05,
    group_operation=0.05,
    instance_create=0.05,
    instance_delete=0.1,
    launch_retry=0.2,
    drain_timeout=4.0,
    preemption_notice=0.3,
    stale=0.0,
    poll=0.02,
)
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
EMAIL_SCOPE = "https://www.googleapis.com/auth/userinfo.email"


def eventually(look: Callable[[], T], wanted: Callable[[T], bool] = bool, *, seconds: float = 120.0) -> T:
    """What `look` sees once `wanted` says yes to it."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if wanted(seen):
            return seen
        assert time.monotonic() < deadline, f"after {seconds} s still: {seen}"
        time.sleep(0.02)


def access_token(cloud: GoogleCloud, identity: Identity | None = None, *, scopes: Sequence[str] = SCOPES) -> str:
    key = cloud.keyfile(identity)
    credentials = service_account.Credentials.from_service_account_info(key, scopes=list(scopes))
    credentials.refresh(Request())
    return str(credentials.token)


@dataclass
class Recorder:
    """The listener: remembers every event; drains at once, unless told not to."""

    drains_at_once: bool = True
    seen: list[tuple[str, Instance]] = field(default_factory=list)
    notices: dict[str, datetime] = field(default_factory=dict)
    complete_drain: Callable[[str], None] = lambda _: None

    def instance_launched(self, instance: Instance) -> None:
        self.seen.append(("launched", instance))

    def drain_requested(self, instance: Instance) -> None:
        self.seen.append(("drain", instance))
        if self.drains_at_once:
            threading.Thread(target=self.complete_drain, args=(instance.instance_id,)).start()

    def instance_relabelled(self, before: Instance, after: Instance) -> None:
        self.relabelled.append((before, after))

    def rebalance_recommended(self, instance: Instance) -> None:
        raise AssertionError("Compute Engine recommends no rebalancing")

    def spot_notice(self, instance: Instance, *, at: datetime) -> None:
        self.notices[instance.name] = at

    def instance_terminated(self, instance: Instance) -> None:
        self.seen.append(("terminated", instance))

    def names(self, event: str) -> list[str]:
        return [instance.name for kind, instance in self.seen if kind == event]


@dataclass
class Project:
    """A running Google Cloud with one cluster, and its clients."""

    cloud: GoogleCloud
    events: Recorder
    faults: Faults

    def __post_init__(self) -> None:
        self.credentials = service_account.Credentials.from_service_account_info(self.cloud.keyfile(), scopes=SCOPES)
        self.gke = ClusterManagerClient(
            credentials=self.credentials,
            transport="rest",
            client_options={"api_endpoint": self.cloud.endpoint_url},
        )

        self.session = AuthorizedSession(self.credentials)

    def compute(self, method: str, path: str, **arguments: Any) -> Any:
        """One call to Compute Engine, below the project; raises as Google's clients do."""
        base = f"{self.cloud.endpoint_url}/compute/v1/projects/{self.cloud.project_id}"
        response = self.session.request(method, f"{base}/{path}".rstrip("/"), **arguments)
        if not response.ok:
            raise from_http_response(response)
        return response.json()

    def group(self, name: str = "gpu", zone: str = "us-central1-a") -> str:
        """The path of a pool's instance group in a zone, below the project."""
        urls = [url for url in self.pool(name).instance_group_urls if f"/zones/{zone}/" in url]
        return urls[0].partition(f"/projects/{self.cloud.project_id}/")[2]

    def managed(self, name: str = "gpu", zone: str = "us-central1-a") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.compute("POST", f"{self.group(name, zone)}/listManagedInstances")[
            "managedInstances"
        ]
        return found

    @property
    def parent(self) -> str:
        return f"projects/{self.cloud.project_id}/locations/{self.cloud.location}/clusters/{CLUSTER}"

    def pool_name(self, name: str = "gpu") -> str:
        return f"{self.parent}/nodePools/{name}"

    def create(self, name: str = "gpu", *, nodes: int = 0, wait: bool = True, **settings: Any) -> Operation:
        pool = node_pool(name, nodes=nodes, **settings)
        operation = self.gke.create_node_pool(parent=self.parent, node_pool=pool)
        return self.done(operation) if wait else operation

    def done(self, operation: Operation) -> Operation:
        """The operation once it is DONE, with or without an error."""
        location = f"projects/{self.cloud.project_id}/locations/{self.cloud.location}"
        return eventually(
            lambda: self.gke.get_operation(name=f"{location}/operations/{operation.name}"),
            lambda seen: seen.status == Operation.Status.DONE,
        )

    def pool(self, name: str = "gpu") -> NodePool:
        return self.gke.get_node_pool(name=self.pool_name(name))

    def resize(self, size: int, name: str = "gpu") -> Operation:
        return self.done(self.gke.set_node_pool_size(request={"name": self.pool_name(name), "node_count": size}))


def node_pool(
    name: str = "gpu", *, nodes: int = 0, zones: tuple[str, ...] = ("us-central1-a",), **config: Any
) -> NodePool:
    config.setdefault("machine_type", "g2-standard-4")
    return NodePool(name=name, initial_node_count=nodes, locations=list(zones), config=NodeConfig(**config))


@pytest.fixture
def timings() -> GoogleTimings:
    return QUICK


@pytest.fixture
def project(timings: GoogleTimings) -> Iterator[Project]:
    with a_project(timings) as project:
        yield project


@contextmanager
def a_project(timings: GoogleTimings) -> Iterator[Project]:
    faults, events = Faults(), Recorder()
    cloud = GoogleCloud(faults=faults, timings=timings, events=events)
    events.complete_drain = cloud.complete_drain
    cloud.create_cluster(CLUSTER, endpoint="127.0.0.1:6443", certificate_authority="Q0E=")
    cloud.start()
    try:
        yield Project(cloud=cloud, events=events, faults=faults)
    finally:
        cloud.stop()
