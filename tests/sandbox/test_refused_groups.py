"""Node groups that EKS refuses to create: for now, as another service does not show something yet, or for good."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.clouds.aws.refused_groups import SHOWN_WITHIN
from airflow_gpu_provider.errors import CloudError, GpuError, PoolSpecError, RequestRejected
from tests.sandbox.aws_account import CLUSTER, TIMINGS, Account

ZONE = "us-west-2a"
ASKED, ADDED = "train-a-g6-xlarge", "train-a-g5-xlarge"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Account]:
    """Its parameter: for how many seconds what is read may be old."""
    account = Account.fresh(timings=replace(TIMINGS, stale=getattr(request, "param", 0.0)))
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(account.connection()))
    yield account
    account.close()


@pytest.fixture
def platform(account: Account) -> Callable[..., OwnedEksPlatform]:
    def made(**fields: Any) -> OwnedEksPlatform:
        usual: dict[str, Any] = {
            "name": "train",
            "cluster_name": CLUSTER,
            "region": "us-west-2",
            "instance_types": ["g6.xlarge"],
            "zones": [ZONE],
            "subnets": [*account.network.subnets.values()],
            "node_role": account.network.node_role_arn,
            "max_nodes": 2,
        }
        return OwnedEksPlatform(EksGpuPool(**(usual | fields)), "prod/dag")

    return made


def error_of(call: Callable[[], object]) -> GpuError:
    with pytest.raises(GpuError) as caught:
        call()
    return caught.value


def begin_cluster_update(account: Account) -> None:
    account.eks.update_cluster_version(name=CLUSTER, version="1.37")


def test_a_cluster_that_is_updating_is_waited_for(account: Account, platform: Callable[..., OwnedEksPlatform]) -> None:
    begin_cluster_update(account)
    fresh = platform()
    error = error_of(lambda: fresh.apply(fresh.plan(1), print))
    assert (type(error), error.retryable, error.tolerated_for) == (CloudError, True, None)
    assert f"train: EKS refuses to create {ASKED}: Cluster" in error.what
    assert error.what.endswith(f"cluster {CLUSTER} is UPDATING.")
    account.advance(TIMINGS.cluster_update)
    fresh.apply(fresh.plan(1), print)
    assert account.node_groups() == [ASKED]


def test_what_is_ready_serves_while_the_cluster_is_updating(
    account: Account, platform: Callable[..., OwnedEksPlatform]
) -> None:
    first, said = platform(), list[str]()
    first.apply(first.plan(1), print)
    account.advance(TIMINGS.nodegroup_create)
    begin_cluster_update(account)
    more = platform(instance_types=["g5.xlarge", "g6.xlarge"])
    more.apply(more.plan(1), said.append)
    assert said[-1].startswith(f"the pool does without {ADDED}: Pool train: EKS refuses to create {ADDED}: ")
    assert [group.name for group in more.observe()] == [ASKED]


def test_an_update_is_left_for_the_next_run_while_eks_refuses_it(
    account: Account, platform: Callable[..., OwnedEksPlatform], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, said = platform(), list[str]()
    first.apply(first.plan(1), print)
    account.advance(TIMINGS.nodegroup_create)
    larger = platform(max_nodes=4)
    plan = larger.plan(1)
    begin_cluster_update(account)
    refuse(larger, monkeypatch, "update_nodegroup_config", "InvalidRequestException")
    larger.apply(plan, said.append)
    assert said == [f"{ASKED} cannot be updated while the cluster is UPDATING; the next run applies the spec"]


def refuse(platform: OwnedEksPlatform, monkeypatch: pytest.MonkeyPatch, method: str, code: str, name: str = "") -> None:
    """Have EKS refuse such calls about a group, or all."""
    eks = platform._eks.clients.eks
    call = eks.call

    def answered(asked: str, **params: Any) -> Any:
        if asked == method and params["nodegroupName"] == (name or params["nodegroupName"]):
            raise CloudError("refused.", code=code, message="Launch template lt-1 was not found.")
        return call(asked, **params)

    monkeypatch.setattr(eks, "call", answered)


@pytest.mark.parametrize("code", ["InvalidParameterException", "InvalidRequestException"])
def test_what_stays_refused_is_the_spec_s_mistake(
    account: Account, platform: Callable[..., OwnedEksPlatform], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    wrong, times = platform(), [account.now]
    refuse(wrong, monkeypatch, "create_nodegroup", code)
    monkeypatch.setattr(wrong._eks.clients.eks, "now", lambda: times[-1])
    error = error_of(lambda: wrong.apply(wrong.plan(1), print))
    assert (type(error), error.what) == (
        RequestRejected,
        f"Pool train: EKS refuses to create {ASKED}: Launch template lt-1 was not found.",
    )
    assert (RequestRejected.tolerated_for or timedelta(0)) > SHOWN_WITHIN, "it ends in words about the spec"
    times.append(times[0] + SHOWN_WITHIN)
    with pytest.raises(PoolSpecError, match="Correct the pool's spec"):
        wrong.apply(wrong.plan(1), print)


def test_the_others_are_made_and_the_pool_goes_on_with_them(
    account: Account, platform: Callable[..., OwnedEksPlatform], monkeypatch: pytest.MonkeyPatch
) -> None:
    two, times, said = platform(instance_types=["g5.xlarge", "g6.xlarge"]), [account.now], list[str]()
    refuse(two, monkeypatch, "create_nodegroup", "InvalidParameterException", ADDED)
    monkeypatch.setattr(two._eks.clients.eks, "now", lambda: times[-1])
    error_of(lambda: two.apply(two.plan(1), print))
    assert account.node_groups() == [ASKED]
    times.append(times[0] + SHOWN_WITHIN)
    two.apply(two.plan(1), said.append)
    assert said[-1].startswith(f"the pool does without {ADDED}: ")


@pytest.mark.parametrize("account", [20.0], indirect=True)
def test_a_launch_template_that_eks_does_not_know_yet_is_waited_for(
    account: Account, platform: Callable[..., OwnedEksPlatform]
) -> None:
    """EKS's answer of a moment after the template was made, as the sandbox plays it; the run's next tries work."""
    types = ["g6.4xlarge", "g6.8xlarge", "g5.4xlarge"]
    spec = {"instance_types": types, "fast_start": True}
    account.advance(20)
    fresh, refusals = platform(**spec), list[str]()
    while fresh.plan(0).changes:
        try:
            fresh.apply(fresh.plan(0), print)
        except RequestRejected as error:
            refusals.append(error.what)
        account.advance(5)
    assert len(account.node_groups()) == len(types)
    assert refusals
    assert all("Launch template lt-" in each and "was not found" in each for each in refusals)
