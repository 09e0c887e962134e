"""Nights on Capacity Blocks and reservations, by a clock that the test moves, under the documented roles.

Kubernetes' time is real: what an operator waits for there, it sees by itself, while the cloud is moved on.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.spec import POOL_TAG
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.operators.delete import DeleteGpuPoolOperator
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox import aws_identity, documented_roles, role_record
from tests.sandbox.running import context_of, eventually, line_of, run, watched_until

HOUR, NUMBERS = timedelta(hours=1), count(1)
TYPE, BLOCK, NEXT = "g6.xlarge", "gpu-block", "gpu-next"
PRICES = {"CAPACITY_BLOCK": 0.0, "ON_DEMAND": 3600.0}
CHECKPOINTS = """
step=$(cat /checkpoints/step 2>/dev/null || echo 0)
echo "begins at $step"
save() { echo $step > /checkpoints/step; echo "saved $step"; exit 143; }
trap save TERM
if [ "$AIRFLOW_GPU_ATTEMPT" = 1 ]; then step=7; while :; do sleep 0.1; done; fi
echo "{\\"resumed_at\\": $step}" > /airflow/xcom/return.json
"""


@pytest.fixture(scope="module")
def gpu_sandbox() -> Iterator[Sandbox]:
    with Sandbox(clock="manual", autoscaler="none", account_id="333333333333") as sandbox:
        yield sandbox


@pytest.fixture
def env(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)


class Night:
    """Two managed node groups of others, the first one of a reservation, and a pool that names both."""

    policies: tuple[str, ...] = ("eks-scale-only.json", "eks-reservations.json")

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.eks, self.ec2 = (aws_client(sandbox.aws, name) for name in ("eks", "ec2"))
        self.said: list[str] = []
        self.reservation = ""
        self.run_id = f"scheduled__{next(NUMBERS)}"
        self.block, self.next = BLOCK, NEXT

    def groups(self, kind: Any = "capacity-block", **reservation: Any) -> EksGpuPool:
        self.reservation = self.sandbox.aws.reserve(kind, TYPE, self.sandbox.zones[0], **reservation)
        target = {"CapacityReservationTarget": {"CapacityReservationId": self.reservation}}
        data: dict[str, Any] = {"InstanceType": TYPE, "CapacityReservationSpecification": target}
        if kind == "capacity-block":
            data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        name = f"template-{self.reservation}"
        self.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
        market = {"capacityType": "CAPACITY_BLOCK"} if kind == "capacity-block" else {}
        self._group(BLOCK, launchTemplate={"name": name}, **market)
        self._group(NEXT, instanceTypes=[TYPE])
        self.sandbox.advance(minutes=3)
        return EksGpuPool(
            name="reserved",
            cluster_name=self.sandbox.cluster_name,
            region=self.sandbox.region,
            manage="scale",
            node_groups=[BLOCK, NEXT],
            max_nodes=1,
            max_runtime=timedelta(hours=20),
            price_per_hour=PRICES,
            aws_conn_id="scaler",
        )

    def _group(self, name: str, **fields: Any) -> None:
        self.eks.create_nodegroup(
            clusterName=self.sandbox.cluster_name,
            nodegroupName=name,
            nodeRole=self.sandbox.node_role_arn,
            subnets=[self.sandbox.subnets[self.sandbox.zones[0]]],
            amiType="AL2023_x86_64_NVIDIA",
            scalingConfig={"minSize": 0, "maxSize": 1, "desiredSize": 0},
            **fields,
        )

    def end(self) -> None:
        for name in (BLOCK, NEXT):
            self.eks.delete_nodegroup(clusterName=self.sandbox.cluster_name, nodegroupName=name)
        self.sandbox.advance(minutes=30)

    @property
    def ahead(self) -> timedelta:
        """How far tests have moved the cloud's clock so far: an operator waits by the API server's."""
        return self.sandbox.clock.utc_now() - datetime.now(UTC)

    @property
    def sizes(self) -> dict[str, int]:
        return {each["nodegroup"]: each["desired"] for each in self.sandbox.aws.describe_groups() if each["nodegroup"]}

    def seconds_of(self, group: str) -> float:
        """Return how long the machines of a group ran, by EC2's word."""
        (asg,) = [each["name"] for each in self.sandbox.aws.describe_groups() if each["nodegroup"] == group]
        of_group = [{"Name": "tag:aws:autoscaling:groupName", "Values": [asg]}]
        found = self.ec2.describe_instances(Filters=of_group)["Reservations"]
        return sum(_ran(instance) for each in found for instance in each["Instances"])

    def begin(self, operator: Any) -> Future[Any]:
        """Run it as a worker and a triggerer do, in a thread."""
        return ThreadPoolExecutor(1).submit(lambda: run(operator, context_of(operator, run_id=self.run_id)))

    def until(self, task: Future[Any], is_so: Callable[[], Any] = lambda: False) -> Any:
        """Move the cloud on, a little at a time, until the task has ended or something is so."""
        moved = threading.Event()
        while not task.done() and not is_so():
            self.sandbox.advance(5)
            moved.wait(0.1)
        return task.result() if task.done() else None

    def run(self, operator: Any) -> Any:
        return self.until(self.begin(operator))

    def ensure(self, pool: EksGpuPool, **fields: Any) -> Future[Any]:
        return self.begin(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, **fields))

    def scale_down(self, pool: EksGpuPool) -> dict[str, Any]:
        zero: dict[str, Any] = self.run(ScaleDownSensor(task_id="zero", gpu_pool=pool))
        self.sandbox.advance(minutes=20)
        assert (self.sizes[self.block], self.sizes[self.next]) == (0, 0)
        assert not [
            each
            for each in self.sandbox.aws.describe_groups()
            if each["nodegroup"] in (self.block, self.next) and each["instances"]
        ]
        return zero


class OwnNight(Night):
    """A pool whose groups this package makes: one of a Capacity Block, and one on demand behind it."""

    policies = ("eks-full.json", "eks-launch-template.json", "eks-owned-templates.json", "eks-reservations.json")

    def groups(self, kind: Any = "capacity-block", **reservation: Any) -> EksGpuPool:
        self.reservation = self.sandbox.aws.reserve(kind, TYPE, self.sandbox.zones[0], **reservation)
        self.pool = EksGpuPool(
            name="own",
            cluster_name=self.sandbox.cluster_name,
            region=self.sandbox.region,
            instance_types=[TYPE],
            zones=[self.sandbox.zones[0]],
            capacity_types=["RESERVED", "ON_DEMAND"],
            reservations=[self.reservation],
            max_nodes=1,
            max_runtime=timedelta(hours=20),
            price_per_hour=PRICES,
            aws_conn_id="scaler",
        )
        (behind,) = self.pool.candidates([self.sandbox.zones[0]])
        self.block, self.next = f"{behind.group}-{self.reservation}", behind.group
        return self.pool

    def end(self) -> None:
        """Delete the pool: nothing of it is left."""
        self.run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=self.pool))
        filters = [{"Name": "tag-key", "Values": [POOL_TAG]}]
        assert not self.ec2.describe_launch_templates(Filters=filters)["LaunchTemplates"]
        assert not {self.block, self.next} & self.sizes.keys()


def _ran(instance: dict[str, Any]) -> float:
    (end,) = re.findall(r"\((.*) GMT\)", instance["StateTransitionReason"])
    return (datetime.fromisoformat(f"{end}+00:00") - instance["LaunchTime"]).total_seconds()


@pytest.fixture
def night(
    gpu_sandbox: Sandbox, env: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Night]:
    night = OwnNight(gpu_sandbox) if getattr(request, "param", "") == "full" else Night(gpu_sandbox)
    of_cluster = documented_roles.of_cluster(gpu_sandbox, "own")
    policy = documented_roles.policy(*night.policies, **of_cluster, NODE_GROUP=[BLOCK, NEXT], ASG_NAME=["none"])
    key = gpu_sandbox.aws.add_identity(f"scaler-{next(NUMBERS)}", policy=policy)
    monkeypatch.setitem(gpu_sandbox.authenticator.access_entries, key.arn, ["system:masters"])
    monkeypatch.setenv("AIRFLOW_CONN_SCALER", json.dumps(aws_identity.connection(gpu_sandbox, key)))
    night.arn = key.arn  # type: ignore[attr-defined]
    yield night
    night.end()
    assert not gpu_sandbox.aws.refused(key.arn)


@pytest.mark.parametrize("night", ["scale", "full"], indirect=True)
def test_a_block_that_ends_in_the_middle_is_left_with_a_checkpoint_and_the_training_resumes_elsewhere(
    night: Night, gpu_sandbox: Sandbox, tmp_path: Any
) -> None:
    left_at = gpu_sandbox.clock.utc_now() + 6 * HOUR - timedelta(minutes=40)
    pool = night.groups(lasts=6 * HOUR)
    (node,) = night.until(night.ensure(pool))["nodes"]
    assert (node["group"], node["capacity_type"]) == (night.block, "CAPACITY_BLOCK")
    (group,) = [each for each in platform_for(pool).observe() if each.name == night.block]
    assert group.switch_at is not None
    night.run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool))

    train = GpuPodOperator(
        task_id="train",
        gpu_pool=pool,
        gpus=1,
        image="busybox:1.36",
        cmds=["sh", "-c", CHECKPOINTS],
        on_preemption="resume",
        do_xcom_push=True,
        termination_grace_period=10,
        volumes=[client.V1Volume(name="c", host_path=client.V1HostPathVolumeSource(path=str(tmp_path)))],
        volume_mounts=[client.V1VolumeMount(name="c", mount_path="/checkpoints")],
    )
    with capture_logs() as told:
        task = night.begin(train)
        night.until(task, lambda: any("begins at 0" in line_of(each) for each in [*told]))
        left = group.switch_at - gpu_sandbox.clock.utc_now()
        assert abs(left_at - group.switch_at) <= timedelta(minutes=1), "the minute itself is of EKS's own action"
        gpu_sandbox.advance(left.total_seconds() + 60)
        result = night.until(task)
    assert result == {"resumed_at": 7}
    assert (tmp_path / "step").read_text() == "7\n"
    usage = night.scale_down(pool)["usage"]
    assert usage["machines"] == 2
    # A block is paid ahead; the other machine costs a dollar a second.
    assert usage["cost"]["total"] == pytest.approx(night.seconds_of(night.next), rel=0.02, abs=3)
    on_block = sum(usage["node_seconds"].values()) - night.seconds_of(night.next)
    assert on_block == pytest.approx(night.seconds_of(night.block), rel=0.02, abs=3)


@pytest.mark.parametrize("kind", ["capacity-block", "default"])
def test_one_that_is_full_is_passed_over_and_the_result_says_so(night: Night, kind: str) -> None:
    pool = night.groups(kind, count=0, lasts=24 * HOUR)
    result = night.until(night.ensure(pool))
    assert [node["group"] for node in result["nodes"]] == [NEXT]
    assert [(each["group"], each["times"], each["why"]) for each in result["tried"]] == [
        (BLOCK, 0, f"{night.reservation} is full: 0 of 0 free")
    ]
    assert any(f"{night.reservation} is full" in line for line in result["plan"])
    night.scale_down(pool)


def test_a_block_that_starts_in_two_hours_is_waited_for(
    night: Night, gpu_sandbox: Sandbox, request: pytest.FixtureRequest
) -> None:
    pool = night.groups(starts_in=2 * HOUR, lasts=24 * HOUR)
    with capture_logs() as told:
        ensure = night.ensure(pool, give_up_after=night.ahead + 4 * HOUR)
        eventually(lambda: any("is waited for" in line_of(each) for each in [*told]) or ensure.done())
        gpu_sandbox.advance(minutes=100)
        assert (night.sizes[BLOCK], night.sizes[NEXT], ensure.done()) == (0, 0, False)
        gpu_sandbox.advance(minutes=20)
        result = night.until(ensure)
    assert [node["group"] for node in result["nodes"]] == [BLOCK]
    assert result["tried"] == []
    night.scale_down(pool)
    role_record.hold(
        "eks-reservations.json",
        request.node.nodeid,
        gpu_sandbox.aws.policy_uses(night.arn),  # type: ignore[attr-defined]
    )


def test_a_block_that_is_cancelled_while_it_is_waited_for_is_no_longer(night: Night, gpu_sandbox: Sandbox) -> None:
    pool = night.groups(starts_in=2 * HOUR, lasts=24 * HOUR)
    with capture_logs() as told:
        ensure = night.ensure(pool, give_up_after=night.ahead + 4 * HOUR)
        eventually(lambda: any("is waited for" in line_of(each) for each in [*told]) or ensure.done())
    gpu_sandbox.aws.hold_reservation(night.reservation, "cancelled")
    result = night.until(ensure)
    assert [node["group"] for node in result["nodes"]] == [NEXT]
    assert [each["why"] for each in result["tried"]] == [f"{night.reservation} is cancelled"]
    night.scale_down(pool)


def test_a_run_that_ends_while_its_block_is_waited_for_leaves_nothing(night: Night, gpu_sandbox: Sandbox) -> None:
    """A triggerer that dies in the wait leaves the demand to the next one, and the teardown withdraws it."""
    pool = night.groups(starts_in=2 * HOUR, lasts=24 * HOUR)
    ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, give_up_after=night.ahead + 4 * HOUR)
    with pytest.raises(TaskDeferred) as deferral:
        ensure.execute(context_of(ensure, run_id=night.run_id))  # type: ignore[arg-type]
    looks = gpu_sandbox.aws.calls["ec2:DescribeCapacityReservations"]
    asyncio.run(
        watched_until(deferral.value, lambda: gpu_sandbox.aws.calls["ec2:DescribeCapacityReservations"] > looks + 1)
    )
    reconciler = open_pool(pool, owner="", holder="a test", report=print)
    (lease,) = list_demand(reconciler.api, pool.name)
    assert (lease.nodes, lease.resume_at is not None) == (0, True)
    zero = night.scale_down(pool)
    assert zero["usage"]["machines"] == 0
    gpu_sandbox.advance(hours=2)
    assert list_demand(reconciler.api, pool.name) == ()
    assert (night.sizes[BLOCK], night.sizes[NEXT]) == (0, 0)
