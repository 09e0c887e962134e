"""What: the faults, how each begins and ends, and what a night that meets it still promises.

Every fault comes from outside: a signal, a call of Airflow's API, an order to the sandbox.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpu_sandbox.airflow_api import PATIENCE, AirflowApiError
from gpu_sandbox.airflow_home import COMMANDS
from gpu_sandbox.faults import Stockout
from tests.airflow.chaos.moments import SCALE_DOWN, Moment
from tests.airflow.chaos.world import LEASES, World, insist

if TYPE_CHECKING:
    from tests.airflow.chaos.cell import Night

Ends = Literal["green", "red", "any", "deleted"]
"""How the run ends: "any" where its tries may not be enough; never green without a training that ended well."""

ZeroBy = Literal["itself", "triggers", "janitor", "max_runtime"]

_DEADLINE_SPEED = 900.0  # two hours and a quarter are nine seconds


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a night owes when it meets a fault.

    Attributes:
        ends: The run's end.
        keeps_pod: A training that runs when the fault begins is the one that ends: no other pod, none killed.
        zero_by: What brings zero: the run's own tasks; the triggers of tasks that were deferred when their run ended
            without teardowns; the janitor's next look; or, Airflow dead for good, the cloud.
    """

    ends: Ends = "green"
    keeps_pod: bool = True
    zero_by: ZeroBy = "itself"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        hits: "run": one run alone, so that several cells run side by side; "all": everybody.
        strike: The fault, as a context: it is there inside, and over after it.
        lasts: Seconds that it is there; None: until the run has ended.
        promise: What a night owes; `promise_at` has the moments at which that differs, by their names.
        can_meet: Whether it can meet a night at that moment at all; else `why_not` says why.
        conf: What the night's configuration has to say for it.
        of_karpenter: Whether only Karpenter does it.
        scarce: Whether it strikes the machine type of its own that nights have for that.
    """

    name: str
    says: str
    hits: Literal["run", "all"]
    strike: Callable[[World, Night], AbstractContextManager[None]]
    lasts: float | None = 0.0
    promise: Promise
    promise_at: Mapping[str, Promise] = field(default_factory=dict)
    can_meet: Callable[[Moment], bool] = lambda moment: True
    why_not: str = ""
    conf: Mapping[str, Any] = field(default_factory=dict)
    of_karpenter: bool = False
    scarce: bool = False

    def meets(self, moment: Moment) -> bool:
        """Whether the matrix has it at that moment."""
        return self.can_meet(moment) and (moment.met_by is None or self.name in moment.met_by)


# -- Airflow's processes -----------------------------------------------------------------------------------------


@contextmanager
def worker_killed(world: World, night: Night) -> Iterator[None]:
    """The task's own process, and the one that supervises it and would tell of its end."""
    pid = insist(lambda: world.home.api.task(night.run.dag_id, night.run.run_id, night.moment.task)).pid
    assert pid is not None
    with suppress(ProcessLookupError, FileNotFoundError):  # the step ended by itself in this very moment
        supervisor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(supervisor, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
    yield


@contextmanager
def worker_lost(world: World, night: Night) -> Iterator[None]:
    """As `worker_killed`, and no other try takes up what it has left."""
    with worker_killed(world, night), run_failed(world, night):
        yield


@contextmanager
def connection_lost(world: World, night: Night) -> Iterator[None]:
    """The pool's connection is deleted between two tries of Ensure; the first is killed with its machine there.

    What is left is said: by a scale-down that fails, soon and once.
    """
    insist(lambda: world.home.api.delete_connection(night.conf["connection"]))
    with worker_killed(world, night):
        yield
    run = night.run
    ended = insist(lambda: world.home.api.task(run.dag_id, run.run_id, SCALE_DOWN))
    key = "error" if ended.state == "failed" else "return_value"
    left = insist(lambda: world.home.api.xcom(run.dag_id, run.run_id, SCALE_DOWN, key=key))
    if not world.machines_left(night.pool) or not world.leases(night.pool):
        night.broken.append("nothing was left that a scale-down had to tell of")
    if (ended.state, ended.try_number, left.get("type")) != ("failed", 1, "PoolNotReleased"):
        night.broken.append(f"what is left is not said: scale-down is {ended.state} in try {ended.try_number}: {left}")


@contextmanager
def triggerer_killed(world: World, night: Night) -> Iterator[None]:
    world.home.kill("triggerer", signal.SIGKILL, with_children=True)
    try:
        yield
    finally:
        world.home.restart("triggerer")


@contextmanager
def scheduler_killed(world: World, night: Night) -> Iterator[None]:
    world.home.kill("scheduler", signal.SIGKILL, with_children=True)
    try:
        yield
    finally:
        world.home.restart("scheduler")


@contextmanager
def airflow_killed(world: World, night: Night) -> Iterator[None]:
    world.home.kill_all()
    try:
        yield
    finally:
        world.home.start()


@contextmanager
def airflow_dead(world: World, night: Night) -> Iterator[None]:
    """Nobody comes back until the cloud has ended what the run wanted; then somebody does, to clear up.

    Hours would pass: the cloud's deadlines come so much sooner, from when Airflow has died.
    """
    deadline = world.cloud.deadline(night.pool)
    world.home.kill_all()
    died_at = datetime.now(UTC)
    world.sandbox.faults.deadline_speed = _DEADLINE_SPEED
    try:
        yield
        if deadline is not None:
            due = died_at + (deadline - died_at) / _DEADLINE_SPEED
            night.broken += _see_the_cloud_end_it(world, night, due)
    finally:
        world.sandbox.faults.deadline_speed = None
        world.home.start()


def _see_the_cloud_end_it(world: World, night: Night, due: datetime) -> list[str]:
    """Watch until the machines are gone; say it where that was before their time, or long after it."""
    while world.machines_left(night.pool):
        if datetime.now(UTC) > due + timedelta(minutes=2):
            return [f"Airflow is dead, and two minutes after max_runtime there still is {world.left(night.pool)}"]
        time.sleep(0.2)
    gone_at = datetime.now(UTC)
    if night.at_strike and gone_at < due - timedelta(seconds=1):
        return [f"the machine of a training went {(due - gone_at).total_seconds():.0f} s before its time"]
    return []


@contextmanager
def triggerer_stalled(world: World, night: Night) -> Iterator[None]:
    """Another triggerer takes over, as in installations that have two; in the end it is scaled in again."""
    world.home.suspend("triggerer", with_children=True)
    with (world.home.home / "logs" / "spare-triggerer.log").open("ab") as log:
        spare = subprocess.Popen(
            [sys.executable, "-m", "airflow", *COMMANDS["triggerer"]],
            env=world.home.environment,
            cwd=world.home.home,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        world.home.kill("triggerer", signal.SIGCONT, with_children=True)
        time.sleep(5)  # in which both believe that the triggers are theirs
        spare.terminate()
        spare.wait(timeout=PATIENCE)


# -- people ------------------------------------------------------------------------------------------------------


@contextmanager
def run_failed(world: World, night: Night) -> Iterator[None]:
    insist(lambda: world.home.api.mark_run(night.run.dag_id, night.run.run_id, "failed"))
    yield


@contextmanager
def run_cleared(world: World, night: Night) -> Iterator[None]:
    insist(lambda: world.home.api.clear_run(night.run.dag_id, night.run.run_id))
    yield


@contextmanager
def task_cleared(world: World, night: Night) -> Iterator[None]:
    """With what comes after it, as Airflow's UI proposes."""
    run, task = night.run, night.moment.task
    insist(lambda: world.home.api.clear_task(run.dag_id, run.run_id, task, downstream=True))
    yield


@contextmanager
def run_deleted(world: World, night: Night) -> Iterator[None]:
    """Airflow deletes no run that is running; one that was set back to queued goes in the midst of its tasks."""
    for _ in range(200):
        insist(lambda: world.home.api.mark_run(night.run.dag_id, night.run.run_id, "queued"))
        try:
            insist(lambda: world.home.api.delete_run(night.run.dag_id, night.run.run_id))
            break
        except AirflowApiError as error:
            if error.args[-1] != 409:  # the scheduler was quicker, and has it running again
                raise
    yield


@contextmanager
def dagrun_timeout(world: World, night: Night) -> Iterator[None]:
    """Goes on until the scheduler has seen it: a training that ends before that meets it at another moment."""
    world.set_run_start(night.run.dag_id, night.run.run_id, ago=timedelta(days=2))
    give_up_at = time.monotonic() + PATIENCE
    while not night.has_ended and time.monotonic() < give_up_at:
        world.revive()
        time.sleep(0.2)
    yield


@contextmanager
def two_runs(world: World, night: Night) -> Iterator[None]:
    night.start_another()
    yield


# -- the cluster and the cloud -----------------------------------------------------------------------------------


@contextmanager
def api_server_down(world: World, night: Night) -> Iterator[None]:
    world.sandbox.restart_apiserver(down_seconds=20)
    yield


@contextmanager
def api_server_hangs(world: World, night: Night) -> Iterator[None]:
    world.sandbox.hang_apiserver(20)
    yield


@contextmanager
def job_controller_away(world: World, night: Night) -> Iterator[None]:
    """As where the control plane's leader is lost: what is written is kept, and nothing comes of it."""
    controller = world.sandbox.control_plane.pids()["kube-controller-manager"]
    os.kill(controller, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(controller, signal.SIGCONT)


@contextmanager
def connections_cut(world: World, night: Night) -> Iterator[None]:
    world.sandbox.cut_connections()
    yield


@contextmanager
def token_expired(world: World, night: Night) -> Iterator[None]:
    """Tokens that their holders think good for a quarter of an hour are refused after seconds."""
    world.sandbox.faults.token_seconds = 5
    try:
        yield
    finally:
        world.sandbox.faults.token_seconds = None


@contextmanager
def kubernetes_403(world: World, night: Night) -> Iterator[None]:
    """The binding of Airflow's role is deleted, and created anew."""
    with world.without_permission():
        yield


@contextmanager
def cloud_errors(world: World, night: Night) -> Iterator[None]:
    world.sandbox.faults.set_error_rate(0.2)
    try:
        yield
    finally:
        world.sandbox.faults.set_error_rate(0)


@contextmanager
def cloud_throttles(world: World, night: Night) -> Iterator[None]:
    world.sandbox.faults.set_throttle_rate(0.2)
    try:
        yield
    finally:
        world.sandbox.faults.set_throttle_rate(0)


@contextmanager
def stockout(world: World, night: Night) -> Iterator[None]:
    with world.out_of_stock(Stockout(zone=night.conf["zone"], instance_type=night.conf["instance_type"])):
        yield


@contextmanager
def spot_lost(world: World, night: Night) -> Iterator[None]:
    give_up_at = time.monotonic() + 10  # it has gone by itself in this very moment, and no other one comes
    while not world.cloud.interrupt_spot(night.pool) and time.monotonic() < give_up_at:
        time.sleep(0.2)
    yield


@contextmanager
def price_rises(world: World, night: Night) -> Iterator[None]:
    """What Ensure has asked for holds; a run pays no more of its money for what the market does after that."""
    world.list_price(night.conf, times=2.0)
    yield


@contextmanager
def one_node_lost(world: World, night: Night) -> Iterator[None]:
    give_up_at = time.monotonic() + 10
    while not world.cloud.interrupt_spot(night.pool, one=True) and time.monotonic() < give_up_at:
        time.sleep(0.2)
    yield


@contextmanager
def node_expires(world: World, night: Night) -> Iterator[None]:
    """Karpenter's expireAfter, with a terminationGracePeriod: do-not-disrupt does not hold then.

    Goes on until the pods that are there have been taken, those too that have no node yet.
    """
    there = {pod.uid for pod in night.at_strike}
    is_over, give_up_at = False, time.monotonic() + 30
    while not is_over and time.monotonic() < give_up_at:
        world.cloud.expire(night.pool)
        time.sleep(0.2)
        is_over = not any(pod.is_there for pod in night.pods if pod.uid in there)
    if not is_over:
        night.broken.append("no pod was taken with its node")
    yield


@contextmanager
def driver_never_ready(world: World, night: Night) -> Iterator[None]:
    world.cloud.hold_back_gpus(True)
    try:
        yield
    finally:
        world.cloud.hold_back_gpus(False)


@contextmanager
def lease_conflict(world: World, night: Night) -> Iterator[None]:
    """Write the pool's leases all the time, as a rival does: who writes what it read before gets a conflict."""
    over = threading.Event()
    writer = threading.Thread(target=_write_leases, args=(world, night.pool, over), daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def _write_leases(world: World, pool: str, over: threading.Event) -> None:
    number = 0
    while not over.wait(0.05):
        for lease in world.items(f"{LEASES}?labelSelector=airflow-gpu-provider%2Fpool%3D{pool}"):
            number += 1
            patch = {"metadata": {"annotations": {"example.com/rival": str(number)}}}
            path = f"{LEASES}/{lease['metadata']['name']}"
            world.sandbox.control_plane.request("PATCH", path, patch, content_type="application/merge-patch+json")


# -- the registry ------------------------------------------------------------------------------------------------

_BEFORE_NODES = frozenset({"ensure-before-create", "ensure-after-create"})
_BEFORE_GPUS = _BEFORE_NODES | {"ensure-deferred"}
# Where a trigger waits for as long as the fault lasts. Ensure's may end by itself in the moment in which its run does.
_HAS_TRIGGER = frozenset({"train-deferred", "gang-half-up", "gang-running"})
_AFTER_TRAINING = frozenset({"train-ended", "scale-down-begins", "scale-down-goes"})


RED = Promise(ends="red", keeps_pod=False)

FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            name="worker-killed",
            says="kill -9 of the worker that runs the step",
            hits="run",
            strike=worker_killed,
            promise=Promise(keeps_pod=False),
            promise_at={"train-on-budget": RED},
            can_meet=lambda moment: moment.in_worker,
            why_not="no worker",
        ),
        Fault(
            name="worker-lost",
            says="kill -9 of the worker that runs the step, and the run is marked failed",
            hits="run",
            strike=worker_lost,
            promise=RED,
            can_meet=lambda moment: moment.ends_with_pool and moment.in_worker,
            why_not="a worker that is killed, and a run that is marked failed, are faults of their own",
        ),
        Fault(
            name="connection-lost",
            says="the pool's connection is deleted while Ensure's next try is to come",
            hits="run",
            strike=connection_lost,
            lasts=None,
            promise=Promise(ends="red", keeps_pod=False, zero_by="janitor"),
            can_meet=lambda moment: moment.own_connection,
            why_not="its pool has the connection of all others",
        ),
        Fault(
            name="triggerer-killed",
            says="kill -9 of the triggerer, which comes back",
            hits="all",
            strike=triggerer_killed,
            lasts=1,
            promise=Promise(),
        ),
        Fault(
            name="triggerer-stalled",
            says="the triggerer stalls until another one has taken over, and comes back",
            hits="all",
            strike=triggerer_stalled,
            lasts=30,
            promise=Promise(),
        ),
        Fault(
            name="scheduler-killed",
            says="kill -9 of the scheduler and its workers, which come back",
            hits="all",
            strike=scheduler_killed,
            lasts=1,
            promise=Promise(keeps_pod=False),
        ),
        Fault(
            name="airflow-killed",
            says="kill -9 of all of Airflow, which comes back",
            hits="all",
            strike=airflow_killed,
            lasts=5,
            promise=Promise(keeps_pod=False),
        ),
        Fault(
            name="airflow-dead",
            says="kill -9 of all of Airflow, which comes back only after max_runtime",
            hits="all",
            strike=airflow_dead,
            promise=Promise(ends="any", keeps_pod=False, zero_by="max_runtime"),
            can_meet=lambda moment: moment.name not in _BEFORE_NODES,
            why_not="no machine yet",
        ),
        Fault(
            name="run-failed",
            says="the run is marked failed",
            hits="run",
            strike=run_failed,
            promise=RED,
            # Airflow runs the teardowns of a run that is marked failed, and then takes its colour from them. And where
            # the scheduler is just about to queue a task, it may do so over the mark: the training then ends well.
            promise_at=dict.fromkeys((*_AFTER_TRAINING, "train-queued"), Promise(ends="any", keeps_pod=False)),
        ),
        Fault(
            name="run-cleared",
            says="the run is cleared",
            hits="run",
            strike=run_cleared,
            promise=Promise(keeps_pod=False),
        ),
        Fault(
            name="task-cleared",
            says="the training's task is cleared, with what comes after it",
            hits="run",
            strike=task_cleared,
            promise=Promise(keeps_pod=False),
            can_meet=lambda moment: moment.of_gang,
            why_not="tests/airflow has it for a pod",
        ),
        Fault(
            name="run-deleted",
            says="the run is deleted, tasks and all",
            hits="run",
            strike=run_deleted,
            promise=Promise(ends="deleted", keeps_pod=False, zero_by="janitor"),
            promise_at=dict.fromkeys(_HAS_TRIGGER, Promise(ends="deleted", keeps_pod=False, zero_by="triggers")),
        ),
        Fault(
            name="dagrun-timeout",
            says="dagrun_timeout, which skips teardowns",
            hits="run",
            strike=dagrun_timeout,
            promise=Promise(ends="red", keeps_pod=False, zero_by="janitor"),
            promise_at=dict.fromkeys(_HAS_TRIGGER, Promise(ends="red", keeps_pod=False, zero_by="triggers")),
        ),
        Fault(
            name="api-server-down",
            says="the Kubernetes API server is away for 20 s",
            hits="all",
            strike=api_server_down,
            promise=Promise(),
        ),
        Fault(
            name="job-controller-away",
            says="Kubernetes' controllers, the Job controller too, stand still for 20 s",
            hits="all",
            strike=job_controller_away,
            lasts=20,
            promise=Promise(),
            can_meet=lambda moment: moment.of_gang,
            why_not="no Job",
        ),
        Fault(
            name="api-server-hangs",
            says="the Kubernetes API server answers nothing for 20 s",
            hits="all",
            strike=api_server_hangs,
            promise=Promise(),
        ),
        Fault(
            name="connections-cut",
            says="all connections to the Kubernetes API server are cut",
            hits="all",
            strike=connections_cut,
            promise=Promise(),
        ),
        Fault(
            name="token-expired",
            says="the cluster refuses tokens that are older than 5 s, for 20 s",
            hits="all",
            strike=token_expired,
            lasts=20,
            promise=Promise(),
        ),
        Fault(
            name="kubernetes-403",
            says="the Kubernetes API server answers 403 to all that Airflow asks, for 60 s",
            hits="all",
            strike=kubernetes_403,
            lasts=60,
            promise=Promise(),
        ),
        Fault(
            name="cloud-errors",
            says="a fifth of all calls to the cloud fails with a 5xx",
            hits="all",
            strike=cloud_errors,
            lasts=None,
            promise=Promise(),
        ),
        Fault(
            name="cloud-throttles",
            says="a fifth of all calls to the cloud is throttled",
            hits="all",
            strike=cloud_throttles,
            lasts=None,
            promise=Promise(),
        ),
        Fault(
            name="stockout",
            says="the zone has no such machine",
            hits="run",
            strike=stockout,
            lasts=None,
            promise=RED,
            can_meet=lambda moment: moment.name in _BEFORE_NODES,
            why_not="the machine is there",
            scarce=True,
        ),
        Fault(
            name="spot-lost",
            says="the spot machine is taken, two seconds after its notice",
            hits="run",
            strike=spot_lost,
            promise=Promise(keeps_pod=False),
            promise_at={"train-on-budget": RED},
            can_meet=lambda moment: moment.name not in _BEFORE_NODES,
            why_not="no machine yet",
            conf={"market": "SPOT"},
        ),
        Fault(
            name="price-rises",
            says="the spot price doubles",
            hits="run",
            strike=price_rises,
            promise=RED,
            can_meet=lambda moment: moment.ends_with_money,
            why_not="tests/unit has what a price does to a bill",
            conf={"market": "SPOT"},
        ),
        Fault(
            name="one-node-lost",
            says="one of two spot machines is taken, two seconds after its notice",
            hits="run",
            strike=one_node_lost,
            promise=Promise(keeps_pod=False),
            can_meet=lambda moment: moment.of_gang,
            why_not="there is one machine",
            conf={"market": "SPOT"},
        ),
        Fault(
            name="node-expires",
            says="Karpenter takes the nodes, whose time is over, with the pods on them",
            hits="run",
            strike=node_expires,
            promise=Promise(keeps_pod=False),
            can_meet=lambda moment: moment.name not in _BEFORE_NODES,
            why_not="no machine yet",
            of_karpenter=True,
        ),
        Fault(
            name="driver-never-ready",
            says="the GPUs of new nodes never become allocatable",
            hits="all",
            strike=driver_never_ready,
            lasts=None,
            promise=RED,
            can_meet=lambda moment: moment.name in _BEFORE_GPUS,
            why_not="the GPUs are allocatable",
        ),
        Fault(
            name="lease-conflict",
            says="somebody else writes the pool's leases, for 10 s",
            hits="run",
            strike=lease_conflict,
            lasts=10,
            promise=Promise(),
        ),
        Fault(
            name="two-runs",
            says="a second run of the DAG on the same pool",
            hits="run",
            strike=two_runs,
            promise=Promise(),
        ),
    )
}
