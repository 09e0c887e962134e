"""A Google Cloud of its own for each test, in Google's own times on a clock that the test moves, and its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from google.api_core.exceptions import from_http_response
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud.container_v1 import ClusterManagerClient, NodeConfig, NodePool, Operation
from google.oauth2 import service_account

from gpu_sandbox import ManualClock
from gpu_sandbox.faults import Faults
from gpu_sandbox.google import GoogleCloud, GoogleTimings, Identity, Instance
from gpu_sandbox.pace import Pace

CLUSTER = "k8s-ml"
REAL = Pace(name="real", speed=1.0, stale=0.0).google()
LAUNCH = REAL.group_reaction + REAL.instance_create
"""From a change of a group's size to instances that run."""
GROW = REAL.operation_pending + LAUNCH
"""GKE's operation that makes a node pool larger."""
SHRINK = REAL.operation_pending + REAL.instance_delete
"""GKE's operation that makes a node pool smaller, where nodes drain at once."""
GIVE_UP = REAL.operation_pending + REAL.group_reaction + REAL.patience
"""GKE's operation whose instances cannot be had."""
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
EMAIL_SCOPE = "https://www.googleapis.com/auth/userinfo.email"


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
            self.complete_drain(instance.instance_id)

    def instance_relabelled(self, before: Instance, after: Instance) -> None:
        raise AssertionError("no test changes the labels or taints of machines that run")

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
    clock: ManualClock
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
        self.advance = self.clock.advance

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

    def begin_to_create(self, name: str = "gpu", *, nodes: int = 0, **settings: Any) -> Operation:
        pool = node_pool(name, nodes=nodes, **settings)
        return self.gke.create_node_pool(parent=self.parent, node_pool=pool)

    def create(
        self, name: str = "gpu", *, nodes: int = 0, takes: float = REAL.node_pool_create, **settings: Any
    ) -> Operation:
        return self.done(self.begin_to_create(name, nodes=nodes, **settings), takes)

    def done(self, operation: Operation, takes: float) -> Operation:
        """The operation once it is DONE, with or without an error: after exactly so many seconds."""
        name = f"projects/{self.cloud.project_id}/locations/{self.cloud.location}/operations/{operation.name}"
        self.advance(takes - 1)
        before = self.gke.get_operation(name=name)
        assert before.status != Operation.Status.DONE, before
        self.advance(1)
        seen = self.gke.get_operation(name=name)
        assert seen.status == Operation.Status.DONE, seen
        return seen

    def pool(self, name: str = "gpu") -> NodePool:
        return self.gke.get_node_pool(name=self.pool_name(name))

    def resize(self, size: int, name: str = "gpu", *, takes: float = GROW) -> Operation:
        request = {"name": self.pool_name(name), "node_count": size}
        return self.done(self.gke.set_node_pool_size(request=request), takes)

    def update(self, **changes: Any) -> Operation:
        request = {"name": self.pool_name(), **changes}
        return self.done(self.gke.update_node_pool(request=request), REAL.node_pool_update)

    def delete(self, name: str = "gpu", *, takes: float = REAL.node_pool_delete) -> Operation:
        return self.done(self.gke.delete_node_pool(name=self.pool_name(name)), takes)


def node_pool(
    name: str = "gpu", *, nodes: int = 0, zones: tuple[str, ...] = ("us-central1-a",), **config: Any
) -> NodePool:
    config.setdefault("machine_type", "g2-standard-4")
    return NodePool(name=name, initial_node_count=nodes, locations=list(zones), config=NodeConfig(**config))


@pytest.fixture
def timings() -> GoogleTimings:
    return REAL


@pytest.fixture
def project(timings: GoogleTimings) -> Iterator[Project]:
    with a_project(timings) as project:
        yield project


@contextmanager
def a_project(timings: GoogleTimings = REAL, clock: ManualClock | None = None, **where: str) -> Iterator[Project]:
    clock, faults, events = clock or ManualClock(), Faults(), Recorder()
    cloud = GoogleCloud(clock=clock, faults=faults, timings=timings, events=events, **where)
    events.complete_drain = cloud.complete_drain
    cloud.create_cluster(CLUSTER, endpoint="127.0.0.1:6443", certificate_authority="Q0E=")
    cloud.start()
    try:
        yield Project(cloud=cloud, clock=clock, events=events, faults=faults)
    finally:
        cloud.stop()
