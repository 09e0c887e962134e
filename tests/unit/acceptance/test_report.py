"""The report: what a reader finds in it, and that nothing of the account is in any part of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.acceptance.pools import AcceptanceCost
from airflow_gpu_provider.acceptance.report import markdown
from airflow_gpu_provider.acceptance.steps import Record, StepReport
from airflow_gpu_provider.clouds.remains import Listed

ACCOUNT, CLUSTER, INSTANCE = "123456789012", "k8s-of-acme", "i-0123456789abcdef0"
DENIED = f"arn:aws:sts::{ACCOUNT}:assumed-role/acme/me is not authorized; see https://10.1.2.3/x of {CLUSTER}"


def report_of(*steps: StepReport, lists: tuple[Listed, ...] = (), is_stopped: bool = False) -> str:
    facts = {"Kubernetes": "v1.33.5-eks-113cf36"}
    pool = EksGpuPool(
        name="accept-p",
        cluster_name=CLUSTER,
        region="us-west-2",
        instance_types=["g6.xlarge"],
        max_nodes=1,
        node_role=f"arn:aws:iam::{ACCOUNT}:role/nodes",
    )
    return markdown(
        Record(steps=list(steps), facts=facts, lists=list(lists), is_stopped=is_stopped),
        pool=pool,
        image="cuda:12",
        budget=AcceptanceCost(nights=3, night=timedelta(minutes=45), price=0.8, currency="USD"),
        at=datetime(2026, 11, 22, 3, 4, tzinfo=UTC),
    )


def test_nothing_of_the_account_is_in_any_part() -> None:
    steps = (
        StepReport("doctor", "failed", lines=[DENIED], phases=[(DENIED, 1.0)]),
        StepReport("nothing is left", "failed", lines=[f"{INSTANCE} (g6.xlarge, running)"]),
    )
    lists = (Listed(what="instances, by EC2", left=(INSTANCE,)), Listed(what="groups", unasked=DENIED))
    text = report_of(*steps, lists=lists)
    for secret in (ACCOUNT, CLUSTER, INSTANCE, "acme", "10.1.2.3", "arn:aws"):
        assert secret not in text


def test_it_tells_steps_times_and_versions() -> None:
    text = report_of(StepReport("a night", "passed", ["all well"], 12.3, [("pod: ran", 4.56)]))
    assert text.startswith("# Acceptance on EKS: passed\n")
    assert "| a night | passed | 12 |" in text
    assert "| a night | pod: ran | 4.6 |" in text
    assert "| Kubernetes | v1.33.5-eks-113cf36 |" in text
    assert "| apache-airflow | 3." in text


def test_it_is_passed_only_where_each_step_is() -> None:
    assert report_of().startswith("# Acceptance on EKS: not passed")
    skipped = (StepReport("one", "passed"), StepReport("two", "skipped"))
    assert report_of(*skipped).startswith("# Acceptance on EKS: not passed")
    assert report_of(skipped[0], is_stopped=True).startswith("# Acceptance on EKS: not passed")
