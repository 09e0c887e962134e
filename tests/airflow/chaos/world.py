"""What the matrix runs in: one sandbox and one Airflow for all of it, and the questions that are asked of them.

Everything here looks from outside, as a person with kubectl, the cloud's console and Airflow's UI would.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_api import AirflowApiError
from gpu_sandbox.airflow_home import AirflowHome
from gpu_sandbox.aws.node_group_rules import NODE_GROUP_QUOTA
from gpu_sandbox.faults import Stockout
from gpu_sandbox.pace import Pace
from tests.airflow.chaos.clouds import Cloud, Platform, cloud_of
from tests.airflow.chaos.pods import POOL_LABEL, PodStories, PodStory, pool_of
from tests.airflow.chaos.trainings import Trainings
from tests.airflow.harness import Airflow
from tests.inherited import INHERITED

T = TypeVar("T")

PREFETCHES = (
    "/apis/apps/v1/namespaces/airflow-gpu-provider/daemonsets"
    f"?labelSelector=app.kubernetes.io%2Fname%3Dprefetch,{POOL_LABEL.replace('/', '%2F')}%3D{{pool}}"
)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
JOBS = "/apis/batch/v1/jobs"

# A machine that is watched for a death is missed after minutes; here after seconds, so that a cell takes one minute.
QUICK_TO_MISS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
}
PARALLELISM = 12
PRICE = 360.0
"""USD an hour of a machine in nights whose money ends: ten cents a second."""


BLOCK_LASTS = timedelta(hours=2)

HAS_PLUGIN = {"example.com/device-plugin": "there"}
"""Nodes with this label get the device plugin from the cluster, as where an administrator has installed it."""

_DEVICE_PLUGIN = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "device-plugin-of-the-cluster", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"app": "device-plugin"}},
        "template": {
            "metadata": {"labels": {"app": "device-plugin"}},
            "spec": {
                "nodeSelector": HAS_PLUGIN,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}],
            },
        },
    },
}


_AIRFLOW = "chaos-airflow"
_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": _AIRFLOW},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": _AIRFLOW}],
}


@dataclass(frozen=True, kw_only=True)
class PoolLeft:
    """What there is of one pool; all zero is what a night is to leave behind.

    Attributes:
        code: ConfigMaps with the code of its tasks, and the Leases that name them.
        prefetches: DaemonSets that pull images.
        groups: These stay, until their pool is deleted.
        templates: Launch templates and
        placement_groups: placement groups that were made with them, and go with them.
    """

    nodes: int
    instances: int
    desired: int
    pods: int
    jobs: int
    leases: int
    code: int
    interfaces: int
    prefetches: int
    templates: int
    placement_groups: int
    groups: int

    @property
    def no_machines(self) -> bool:
        """Whether nothing is left but what its deletion removes."""
        of_machines = self.nodes or self.instances or self.interfaces or self.desired
        return not (of_machines or self.pods or self.jobs or self.leases or self.code or self.prefetches)

    @property
    def nothing(self) -> bool:
        """Whether there are empty groups at most, which have nothing of ours beside them."""
        return self.no_machines and not (self.templates or self.placement_groups)

    @property
    def nothing_at_all(self) -> bool:
        return self.nothing and not self.groups

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes, {self.instances} instances, {self.interfaces} network interfaces, "
            f"desired size {self.desired}, {self.pods} pods, {self.jobs} Jobs, {self.leases} leases, "
            f"{self.code} ConfigMaps and Leases of code, "
            f"{self.prefetches} DaemonSets for a prefetch, {self.groups} groups, {self.templates} launch templates, "
            f"{self.placement_groups} placement groups"
        )


@dataclass(frozen=True, kw_only=True)
class TaskNow:
    """A task instance; `pid` is of the process that runs the operator's code, or ran it last."""

    state: str | None
    pid: int | None


@dataclass(frozen=True, kw_only=True)
class World:
    """One sandbox, one Airflow, and what watches them."""

    sandbox: Sandbox
    cloud: Cloud
    home: AirflowHome
    airflow: Airflow
    pods: PodStories
    trainings: Trainings
    revived: list[str] = field(default_factory=list)
    _reviving: threading.Lock = field(default_factory=threading.Lock)
    _shortages: Counter[Stockout] = field(default_factory=Counter)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def revive(self) -> None:
        """Start again what of Airflow has ended by itself, and remember it."""
        with self._reviving:
            self.home.revive(lambda component, _: self.revived.append(component))

    @contextmanager
    def out_of_stock(self, shortage: Stockout) -> Iterator[None]:
        """Meanwhile there is none of it, for several nights at once too."""
        with self._counting:
            self._shortages[shortage] += 1
            self.sandbox.faults.add(shortage)
        try:
            yield
        finally:
            with self._counting:
                self._shortages[shortage] -= 1
                if not self._shortages[shortage]:
                    self.sandbox.faults.remove(shortage)

    def list_price(self, conf: Mapping[str, Any], *, times: float = 1.0) -> None:
        """Have AWS list PRICE for a night's machine, in both markets, or so many times that."""
        prices = self.sandbox.aws.prices
        prices.set_on_demand(conf["instance_type"], PRICE * times)
        prices.set_spot(conf["instance_type"], conf["zone"], PRICE * times)

    def reserve_block(self, conf: dict[str, Any]) -> None:
        """Have a Capacity Block for a night's machine, which is left 40 minutes before it ends."""
        block = self.sandbox.aws.reserve("capacity-block", conf["instance_type"], conf["zone"], lasts=BLOCK_LASTS)
        conf["reservation"] = block

    def add_connection(self, conf: dict[str, Any]) -> None:
        """Add a connection to Airflow's database that is the night's alone, with what all others have."""
        usual = json.loads(self.home.environment["AIRFLOW_CONN_AWS_DEFAULT"])
        conf["connection"] = f"aws-{conf['pool']}"
        insist(lambda: self.home.api.add_connection(conf["connection"], usual))

    @contextmanager
    def held(self, api: str) -> Iterator[None]:
        """Meanwhile AWS throttles each call of it ("eks:CreateNodegroup"), and what is before it lasts; "": of none."""
        if not api:
            yield
            return
        faults = self.sandbox.faults
        faults.limit_calls(api, per_second=1e-6, burst=1)
        faults.draw_throttle("", api)  # the one call that a limit has at least
        try:
            yield
        finally:
            faults.limit_calls(api, per_second=1e6, burst=1e6)

    @contextmanager
    def without_permission(self) -> Iterator[None]:
        """Meanwhile Airflow's role in the cluster is not bound: every request of its own is answered with 403."""
        insist_on(self.sandbox, "DELETE", f"{_BINDINGS}/{_AIRFLOW}")
        try:
            yield
        finally:
            bind(self.sandbox)

    def items(self, path: str) -> list[dict[str, Any]]:
        """What the API server lists; OSError while it is away."""
        status, reply = self.sandbox.control_plane.request("GET", path)
        if status == 404:
            return []
        if status != 200:
            raise OSError(f"the API server does not list {path}: {status}")
        items: list[dict[str, Any]] = reply["items"]
        return items

    def nodes(self, pool: str) -> list[dict[str, Any]]:
        return self.items(f"/api/v1/nodes?labelSelector={self.cloud.node_label.replace('/', '%2F')}%3D{pool}")

    def desired(self, pool: str) -> int:
        return sum(group["desired"] for group in self.cloud.groups(pool))

    def leases(self, pool: str) -> list[dict[str, Any]]:
        """Demand for the pool."""
        selector = f"airflow-gpu-provider%2Fkind%3Ddemand,{POOL_LABEL.replace('/', '%2F')}%3D{pool}"
        return self.items(f"{LEASES}?labelSelector={selector}")

    def code(self, pool: str) -> list[dict[str, Any]]:
        """The code of the pool's tasks."""
        of_pool = f"{POOL_LABEL.replace('/', '%2F')}%3D{pool}"
        leases = f"{LEASES}?labelSelector=airflow-gpu-provider%2Fkind%3Dcode,{of_pool}"
        return [*self.items(leases), *self.items(f"/api/v1/configmaps?labelSelector={of_pool}")]

    def jobs(self, pool: str) -> list[dict[str, Any]]:
        """The pool's gangs."""
        return self.items(f"{JOBS}?labelSelector={POOL_LABEL.replace('/', '%2F')}%3D{pool}")

    def prefetches(self, pool: str) -> list[dict[str, Any]]:
        """The DaemonSets that have the pool's nodes pull images."""
        return self.items(PREFETCHES.format(pool=pool))

    def evict(self, pod: PodStory) -> None:
        """Have a pod end, as a node's drain does."""
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        metadata = {"name": pod.name, "namespace": pod.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        insist_on(self.sandbox, "POST", f"{path}/eviction", body)

    def living_pods(self, pool: str) -> list[dict[str, Any]]:
        """Those that hold a GPU or wait for one."""
        return [
            pod
            for pod in self.items("/api/v1/pods")
            if pool_of(pod) == pool and pod["status"].get("phase") in ("Pending", "Running")
        ]

    def left(self, pool: str) -> PoolLeft:
        """Ask the cluster and the cloud what there is of the pool, now."""
        made = self.cloud.made(pool)
        return PoolLeft(
            nodes=len(self.nodes(pool)),
            instances=len(self.cloud.instances(pool)),
            desired=self.desired(pool),
            pods=len(self.living_pods(pool)),
            jobs=len(self.jobs(pool)),
            leases=len(self.leases(pool)),
            code=len(self.code(pool)),
            interfaces=made.interfaces,
            prefetches=len(self.prefetches(pool)),
            templates=made.templates,
            placement_groups=made.placement_groups,
            groups=made.groups,
        )

    def machines_left(self, pool: str) -> bool:
        """Whether anything of the pool still costs money."""
        return bool(self.cloud.instances(pool) or self.desired(pool) or self.nodes(pool))

    def tasks(self, dag_id: str, run_id: str) -> Mapping[str, TaskNow]:
        """A run's tasks by their ids, from Airflow's own database: twenty looks a second would keep its API busy."""
        query = "SELECT task_id, state, pid FROM task_instance WHERE dag_id = ? AND run_id = ?"
        with closing(sqlite3.connect(self.home.home / "airflow.db", timeout=30)) as database:
            return {
                name: TaskNow(state=state, pid=pid) for name, state, pid in database.execute(query, (dag_id, run_id))
            }

    def set_run_start(self, dag_id: str, run_id: str, ago: timedelta) -> None:
        """Have a run be so old: in Airflow's own database, as no test can wait for a night's dagrun_timeout."""
        at = (datetime.now(UTC) - ago).strftime("%Y-%m-%d %H:%M:%S.%f")
        with closing(sqlite3.connect(self.home.home / "airflow.db", timeout=30)) as database, database:
            database.execute("UPDATE dag_run SET start_date = ? WHERE dag_id = ? AND run_id = ?", (at, dag_id, run_id))


def insist(call: Callable[[], T], *, times: int = 30) -> T:
    """Call Airflow's API as people do: once more where it had an error of its own, and its SQLite was busy say."""
    for _ in range(times - 1):
        try:
            return call()
        except AirflowApiError as error:
            if isinstance(error.args[-1], int) and error.args[-1] < 500:
                raise
            time.sleep(1)
    return call()


def bind(sandbox: Sandbox) -> None:
    """Give those who come by the cloud's identities a role that can be taken from them, unlike system:masters."""
    insist_on(sandbox, "POST", _BINDINGS, _BINDING)
    sandbox.authenticator.default_groups = (_AIRFLOW,)


def insist_on(sandbox: Sandbox, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    """Make an administrator's request of the API server, once more where it is away by another fault."""
    for left in reversed(range(30)):
        try:
            status, reply = sandbox.control_plane.request(method, path, body)
        except OSError:
            status, reply = 0, {}
        if status in (200, 201, 404, 409):
            return
        if not left:
            raise OSError(f"{method} {path}: {status} {reply}")
        time.sleep(1)


def open_sandbox(platform: Platform, folder: Path, *, pace: Pace, seed: int) -> Sandbox:
    """A cluster with nothing in it, and its cloud, whose reads are old; to be entered."""
    aws, google, boot_seconds = pace.aws(), pace.google(), pace.boot_seconds
    if pace.name == "quick":
        # A machine's end takes as long as others need to see it.
        aws = replace(aws, spot_notice=2.0, terminate=1.5)
        google = replace(google, preemption_notice=2.0, instance_delete=1.5)
        boot_seconds = 1.0
    return Sandbox(
        platform="gke" if platform == "gke" else "eks",
        pace=pace.name,
        speed=pace.speed,
        seed=seed,
        boot_seconds=boot_seconds,
        timings=google if platform == "gke" else aws,
        autoscaler="none",
        data_dir=folder,
    )


@contextmanager
def open_world(platform: Platform, sandbox: Sandbox, folder: Path, env: dict[str, str]) -> Iterator[World]:
    """Start an Airflow of the matrix's own over a sandbox, and everything that watches."""
    dags, cloud = Path(__file__).parent / "dags", cloud_of(platform, sandbox)
    environment = {**sandbox.env(), **env, **cloud.env, **QUICK_TO_MISS}
    home = AirflowHome(folder, dags, environment, parallelism=PARALLELISM, inherited=INHERITED)
    status, reply = sandbox.control_plane.request(
        "POST", "/apis/apps/v1/namespaces/kube-system/daemonsets", _DEVICE_PLUGIN
    )
    if status not in (201, 409):
        raise OSError(f"the device plugin's DaemonSet cannot be created: {reply}")
    bind(sandbox)
    pods, trainings = PodStories(sandbox.kubeconfig), Trainings()
    pods.start()
    if sandbox.platform == "eks":
        sandbox.aws.set_quota(NODE_GROUP_QUOTA, 500)  # each cell has a pool of its own
    try:
        with home:
            yield World(
                sandbox=sandbox,
                cloud=cloud,
                home=home,
                airflow=Airflow(home, sandbox),
                pods=pods,
                trainings=trainings,
            )
    finally:
        cloud.close()
        pods.stop()
        trainings.close()
