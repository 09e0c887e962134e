"""When: the steps of a night at which something can go wrong, and how each is recognised from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpu_sandbox.airflow_api import TASK_ENDED, RunStatus
from tests.airflow.chaos.clouds import Made, Use
from tests.airflow.chaos.world import TaskNow, World

ENSURE, PLUGIN, TRAIN, SCALE_DOWN = "gpus.ensure", "gpus.device_plugin", "train", "gpus.scale_down"


class Look:
    """One look at a run and its pool. What is not asked for is not read."""

    def __init__(self, world: World, run: RunStatus, pool: str) -> None:
        self._world, self._run, self.pool = world, run, pool

    @cached_property
    def _tasks(self) -> Mapping[str, TaskNow]:
        return self._world.tasks(self._run.dag_id, self._run.run_id)

    def state(self, task_id: str) -> str | None:
        """None where it is not scheduled yet, or the run has been deleted."""
        return self._tasks[task_id].state if task_id in self._tasks else None

    def is_running(self, task_id: str) -> bool:
        """In a worker, with its own process begun."""
        return self.state(task_id) == "running" and self._tasks[task_id].pid is not None

    def waits_in_triggerer(self, task_id: str) -> bool:
        """Deferred, and its trigger has begun, as its log shows: one that never did is told of nothing."""
        logs = self._world.home.home / "logs" / f"dag_id={self._run.dag_id}" / f"run_id={self._run.run_id}"
        return self.state(task_id) == "deferred" and any((logs / f"task_id={task_id}").glob("*.trigger.*"))

    @property
    def has_groups(self) -> bool:
        return self._world.cloud.has_groups(self.pool)

    @cached_property
    def made(self) -> Made:
        return self._world.cloud.made(self.pool)

    @property
    def has_prefetch(self) -> bool:
        return bool(self._world.prefetches(self.pool))

    @property
    def desired(self) -> int:
        return self._world.desired(self.pool)

    @property
    def has_lease(self) -> bool:
        return bool(self._world.leases(self.pool))

    @property
    def has_instances(self) -> bool:
        return bool(self._world.cloud.instances(self.pool))

    @property
    def phases(self) -> list[str]:
        """Of the run's pods that are there."""
        return [pod.phase for pod in self._world.pods.of_run(self._run.run_id) if not pod.gone]

    @property
    def trains(self) -> bool:
        """Whether the training itself said that it has begun."""
        return self._world.trainings.begun[self._run.run_id] > 0

    @property
    def has_suspended_gang(self) -> bool:
        """Whether the run's Job is there, and nobody has admitted it."""
        return any(job["spec"].get("suspend") for job in self._world.jobs(self.pool))

    @property
    def ranks_that_train(self) -> Sequence[int]:
        """Those that said so and that nobody has asked to end; for a pod alone, rank 0."""
        said = self._world.trainings.begun[self._run.run_id]
        runs = [pod.rank for pod in self._world.pods.of_run(self._run.run_id) if pod.runs]
        return sorted(runs) if said >= len(runs) else ()

    @property
    def has_lost_rank(self) -> bool:
        """Whether rank 1 is to end or has ended, and its Job is there, its loss not dealt with."""
        lost = any(pod.rank == 1 and pod.killed for pod in self._world.pods.of_run(self._run.run_id))
        return lost and bool(self._world.jobs(self.pool)) and self.state(TRAIN) not in TASK_ENDED

    def evict(self, rank: int) -> None:
        """Take away a rank's pod, as `kubectl drain` does."""
        self._world.evict(
            next(pod for pod in self._world.pods.of_run(self._run.run_id) if pod.runs and pod.rank == rank)
        )


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A step of a night.

    Attributes:
        says: For people.
        has_come: Whether it is now.
        dag_id: The DAG whose nights have it.
        holds: Whether the training goes on until the fault is over.
        task: Whose step it is.
        in_worker: Whether a worker has a process for it.
        met_by: The faults that are tried at it, by their names; None: all that can meet it.
        follows: The moment at which `brought_by` brings this one about; "": it comes by itself.
        keeps_pod: Whether a training that runs at it may be owed to go on.
        ends_with_money: Whether nothing but the run's max_cost ends its training.
        machine: What its nights run on.
        held: The call of AWS' that is throttled until the fault is there, so that the step goes on no further.
        on_block: Whether its nights have a Capacity Block.
        own_connection: Whether the night's pool has an Airflow connection of its own.
        ends_with_pool: Whether the night's pool is deleted in the end: it has launch templates of its own.
    """

    name: str
    says: str
    task: str
    has_come: Callable[[Look], bool]
    dag_id: str = "chaos_deferred"
    holds: bool = False
    in_worker: bool = False
    met_by: frozenset[str] | None = None
    follows: str = ""
    brought_by: Callable[[Look], None] | None = None
    keeps_pod: bool = True
    ends_with_money: bool = False
    machine: Use = "usual"
    held: str = ""
    on_block: bool = False
    own_connection: bool = False
    ends_with_pool: bool = False

    @property
    def of_gang(self) -> bool:
        """Whether it is one of a training on two nodes."""
        return self.met_by == MEET_GANGS


MEET_GANGS = frozenset(
    {
        "worker-killed",
        "triggerer-killed",
        "scheduler-killed",
        "airflow-killed",
        "run-failed",
        "run-cleared",
        "task-cleared",
        "run-deleted",
        "dagrun-timeout",
        "api-server-down",
        "job-controller-away",
        "spot-lost",
        "one-node-lost",
        "node-expires",
    }
)
"""What can be another thing for pods of one Job than for a pod alone."""


_OF_EFA: Any = {"dag_id": "chaos_efa", "machine": "efa", "in_worker": True, "ends_with_pool": True}

MOMENTS: Mapping[str, Moment] = {
    moment.name: moment
    for moment in (
        Moment(
            name="ensure-before-create",
            says="Ensure runs, and has created nothing",
            task=ENSURE,
            has_come=lambda look: look.is_running(ENSURE) and not look.has_groups,
            in_worker=True,
        ),
        Moment(
            name="ensure-after-create",
            says="the node group is there, at size zero",
            task=ENSURE,
            has_come=lambda look: look.has_groups and not look.desired and look.is_running(ENSURE),
            in_worker=True,
        ),
        Moment(
            name="ensure-deferred",
            says="Ensure waits in the triggerer for the machine",
            task=ENSURE,
            has_come=lambda look: look.desired > 0 and look.waits_in_triggerer(ENSURE),
        ),
        Moment(
            name="ensure-without-gpus",
            says="Ensure waits in a worker, its machine there, for GPUs that nobody hands out",
            task=ENSURE,
            has_come=lambda look: look.has_lease and look.has_instances and look.is_running(ENSURE),
            dag_id="chaos_no_gpus",
            in_worker=True,
            met_by=frozenset({"connection-lost"}),
            own_connection=True,
        ),
        Moment(
            name="placement-made",
            says="a placement group has been made, and no launch template",
            task=ENSURE,
            has_come=lambda look: (
                look.is_running(ENSURE) and look.made.placement_groups > 0 and not look.made.templates
            ),
            held="ec2:CreateLaunchTemplate",
            **_OF_EFA,
            met_by=frozenset({"worker-lost"}),
        ),
        Moment(
            name="template-made",
            says="a launch template has been made, and no node group",
            task=ENSURE,
            has_come=lambda look: look.is_running(ENSURE) and look.made.templates > 0 and not look.has_groups,
            held="eks:CreateNodegroup",
            **_OF_EFA,
            met_by=frozenset({"worker-killed", "worker-lost"}),
        ),
        Moment(
            name="group-of-template",
            says="the node group of a launch template is there, at size zero",
            task=ENSURE,
            has_come=lambda look: look.has_groups and not look.desired and look.is_running(ENSURE),
            **_OF_EFA,
            met_by=frozenset({"worker-lost"}),
        ),
        Moment(
            name="prefetch-begun",
            says="a DaemonSet is there that pulls images, and the machine is not",
            task=ENSURE,
            has_come=lambda look: look.waits_in_triggerer(ENSURE) and look.has_prefetch,
            **{**_OF_EFA, "in_worker": False},
            met_by=frozenset({"airflow-killed", "run-deleted"}),
        ),
        Moment(
            name="plugin-runs",
            says="InstallDevicePlugin runs",
            task=PLUGIN,
            has_come=lambda look: look.desired > 0 and look.is_running(PLUGIN),
            dag_id="chaos_plugin",
            in_worker=True,
        ),
        Moment(
            name="train-queued",
            says="the training's task waits for a worker",
            task=TRAIN,
            has_come=lambda look: look.state(TRAIN) in ("scheduled", "queued"),
        ),
        Moment(
            name="train-before-create",
            says="the training's task runs, and has no pod",
            task=TRAIN,
            has_come=lambda look: not look.phases and look.is_running(TRAIN),
            in_worker=True,
        ),
        Moment(
            name="train-pod-created",
            says="the training's pod has been created",
            task=TRAIN,
            has_come=lambda look: bool(look.phases) and look.is_running(TRAIN),
            in_worker=True,
        ),
        Moment(
            name="train-deferred",
            says="the training runs, its task deferred",
            task=TRAIN,
            has_come=lambda look: look.trains and look.waits_in_triggerer(TRAIN),
            holds=True,
        ),
        Moment(
            name="train-in-worker",
            says="the training runs, its task in a worker",
            task=TRAIN,
            has_come=lambda look: look.trains and look.is_running(TRAIN),
            dag_id="chaos_blocking",
            holds=True,
            in_worker=True,
        ),
        Moment(
            name="train-ended",
            says="the pod has ended, its result not collected",
            task=TRAIN,
            has_come=lambda look: "Succeeded" in look.phases and look.state(TRAIN) not in TASK_ENDED,
        ),
        Moment(
            name="train-waits-for-retry",
            says="the training has failed, and waits for its next try",
            task=TRAIN,
            has_come=lambda look: look.state(TRAIN) == "up_for_retry",
            dag_id="chaos_retried",
        ),
        Moment(
            name="train-on-budget",
            says="the training of a run with max_cost runs, its task in a worker, and goes on until the money is used",
            task=TRAIN,
            has_come=lambda look: look.trains and look.is_running(TRAIN),
            dag_id="chaos_budget",
            holds=True,
            in_worker=True,
            met_by=frozenset({"worker-killed", "spot-lost", "price-rises"}),
            keeps_pod=False,
            ends_with_money=True,
        ),
        Moment(
            name="train-on-block",
            says="the training runs on a Capacity Block, its task deferred",
            task=TRAIN,
            has_come=lambda look: look.trains and look.waits_in_triggerer(TRAIN),
            dag_id="chaos_block",
            holds=True,
            on_block=True,
            ends_with_pool=True,
            met_by=frozenset({"airflow-killed", "airflow-dead"}),
        ),
        Moment(
            name="gang-suspended",
            says="the gang's Job has been created, and is not admitted",
            task=TRAIN,
            has_come=lambda look: look.has_suspended_gang and look.is_running(TRAIN),
            dag_id="chaos_gang",
            in_worker=True,
            met_by=MEET_GANGS,
        ),
        Moment(
            name="gang-half-up",
            says="one rank of the gang runs, the other not yet",
            task=TRAIN,
            has_come=lambda look: (
                look.ranks_that_train == [0] and look.phases.count("Pending") == 1 and look.waits_in_triggerer(TRAIN)
            ),
            dag_id="chaos_gang_half_up",
            holds=True,
            met_by=MEET_GANGS,
        ),
        Moment(
            name="gang-running",
            says="both ranks of the gang run, its task deferred",
            task=TRAIN,
            has_come=lambda look: look.ranks_that_train == [0, 1] and look.waits_in_triggerer(TRAIN),
            dag_id="chaos_gang",
            holds=True,
            met_by=MEET_GANGS,
        ),
        Moment(
            name="gang-in-worker",
            says="both ranks of the gang run, its task in a worker",
            task=TRAIN,
            has_come=lambda look: look.ranks_that_train == [0, 1] and look.is_running(TRAIN),
            dag_id="chaos_gang_blocking",
            holds=True,
            in_worker=True,
            met_by=MEET_GANGS,
        ),
        Moment(
            name="rank-lost",
            says="one rank of the gang is gone, the other has not been ended",
            task=TRAIN,
            has_come=lambda look: look.has_lost_rank,
            dag_id="chaos_gang",
            holds=True,
            met_by=MEET_GANGS,
            follows="gang-running",
            brought_by=lambda look: look.evict(rank=1),
            keeps_pod=False,  # the other rank ends with it
        ),
        Moment(
            name="scale-down-begins",
            says="scale-down runs, and has released nothing",
            task=SCALE_DOWN,
            has_come=lambda look: look.desired > 0 and look.is_running(SCALE_DOWN),
            in_worker=True,
        ),
        Moment(
            name="scale-down-goes",
            says="the machine is being removed",
            task=SCALE_DOWN,
            has_come=lambda look: (
                look.has_groups
                and not look.desired
                and look.has_instances
                and look.state(SCALE_DOWN) in ("running", "deferred")
            ),
        ),
    )
}
