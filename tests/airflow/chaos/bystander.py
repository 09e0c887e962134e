"""Another DAG's run that goes on all the while, on a pool of its own: nothing that happens may touch it."""

from __future__ import annotations

from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.chaos.world import World

POOL = "bystander"


class BystanderHarmed(Exception):
    """A run that nothing was to happen to has suffered."""


class Bystander:
    """Trains from `begin` to `finish`."""

    def __init__(self, world: World, run: RunStatus) -> None:
        self._world, self._run = world, run
        wait_until(lambda: bool(world.pods.of_run(POOL)), what="the bystander's pod to be seen")
        (pod,) = world.pods.of_run(POOL)
        self._uid = pod.uid

    @classmethod
    def begin(cls, world: World) -> Bystander:
        """Start its night, and return once it trains."""
        world.trainings.hold(POOL)
        world.cloud.prepare(POOL)
        api = world.home.api
        api.wait_for_dag("chaos_bystander")
        conf = {
            "pool": POOL,
            "port": world.trainings.port,
            "zone": world.sandbox.zones[0],
            "instance_type": world.cloud.machine_types["bystander"],
            "market": "ON_DEMAND",
        }
        run = api.trigger("chaos_bystander", conf=conf, run_id=POOL)
        wait_until(lambda: world.trainings.begun[POOL] > 0, what="the bystander's training")
        return cls(world, run)

    def harm(self) -> list[str]:
        """What has happened to it so far, in words."""
        pods = self._world.pods.of_run(POOL)
        return [str(pod) for pod in pods if pod.killed or pod.uid != self._uid]

    def finish(self) -> None:
        """Let it end. Raises BystanderHarmed where it does not end well, or not with the pod that it had."""
        self._world.trainings.release(POOL)
        run = self._run
        state = self._world.home.api.wait_for_run(run.dag_id, run.run_id).state
        if state != "success" or self.harm():
            raise BystanderHarmed(f"the run beside the matrix is {state}; its pods: {self.harm() or 'as they were'}")
