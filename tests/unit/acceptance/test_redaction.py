"""What a report must not hold does not come out, wherever it stands; and what a reader needs does."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.acceptance.report import redacted

HEX = "0123456789abcdef"
BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
around = st.sampled_from(["", " ", "(", "'", '"', ", ", ": ", "| "])


def of(alphabet: str, least: int, most: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most or least)


account = of("0123456789", 12)
secrets = st.one_of(
    account,
    account.map(lambda a: f"arn:aws:iam::{a}:role/airflow"),
    account.map(lambda a: f"arn:aws-cn:sts::{a}:assumed-role/x/session"),
    of("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16).map(lambda k: f"AKIA{k}"),
    of(BASE64, 60, 200).map(lambda t: f"k8s-aws-v1.{t}"),
    of(BASE64, 60, 200).map(lambda t: f"ya29.{t}"),
    of(BASE64, 20, 60).map(lambda t: f"eyJ{t}.{t}.{t}"),
    of(BASE64, 20, 60).map(lambda t: f"Bearer {t}"),
    of(HEX, 17).map(lambda i: f"i-{i}"),
    of(HEX, 17).map(lambda i: f"subnet-{i}"),
    of(HEX, 17).map(lambda i: f"sg-{i}"),
    of(HEX.upper(), 32).map(lambda i: f"https://{i}.gr7.us-west-2.eks.amazonaws.com"),
    of(HEX.upper(), 32).map(lambda i: f"{i}.gr7.us-west-2.eks.amazonaws.com"),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=4).map(lambda ip: f"ip-{str(ip).replace('.', '-')}.us-west-2.compute.internal"),
    st.ip_addresses(v=6).map(lambda ip: ipaddress.IPv6Address(ip).exploded),
    st.ip_addresses(v=6).map(str).filter(lambda text: len(text) > 3),
    st.uuids().map(str),
    of(HEX, 8).map(lambda i: f"gke-ml-accept-acc-a-g2-stan-{i}-l06y"),
    of(HEX, 8).map(lambda i: f"gke-ml-accept-{i}-0abc.us-central1-a.c.my-project.internal"),
    of("abcdefghijkl", 6).map(lambda n: f"{n}@{n}.iam.gserviceaccount.com"),
    of(BASE64, 40).map(lambda k: f"1a{k}"),
)


@given(secret=secrets, before=around, after=around)
def test_no_form_of_secret_is_left(secret: str, before: str, after: str) -> None:
    assert secret not in redacted(f"the call failed{before or ' '}{secret}{after} at once")


@given(secret=secrets)
def test_what_is_redacted_stays_as_it_is(secret: str) -> None:
    once = redacted(f"as {secret} in a sentence")
    assert redacted(once) == once


@given(name=of("abcdefghijklmnopqrstuvwxyz-", 3, 20).map(lambda n: f"x{n}x"), around=around)
def test_no_known_name_is_left(name: str, around: str) -> None:
    assert name not in redacted(f"cluster{around or ' '}{name}{around} is reached", {name: "cluster"})


@pytest.mark.parametrize(
    "text",
    [
        "EKS, g6.xlarge in us-west-2a, ON_DEMAND",
        "kubelet v1.33.5-eks-113cf36, Amazon Linux 2023.9.20251020, containerd://2.1.4, kernel 6.12.46-66.121.amzn2023",
        "v1.33.5-gke.1162000, Container-Optimized OS from Google, driver 580.95.05, NVIDIA L4",
        "2026-11-22 03:04:05Z, 312.4 s, 0.8048 an hour",
        "apache-airflow 3.3.0, airflow-gpu-provider 0.1.0, Python 3.11.9",
        "GET /compute/v1/projects/-/zones/-/instanceGroupManagers/-/listManagedInstances",
        "InvalidParameterException, 403 Forbidden, ThrottlingException",
        "nvidia-device-plugin-daemonset-accept-train-gpu served kube-system pods",
    ],
)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert redacted(text, {"k8s-ml": "cluster"}) == text


def test_a_machine_s_name_goes_with_the_cluster_s_name_in_it() -> None:
    text = "on node gke-k8s-ml-accept-acc-a-g2-stan-abdab4f8-l06y, of gke-k8s-ml-accept-abdab4f8-grp"
    assert redacted(text, {"k8s-ml": "cluster"}) == "on node <node>, of <node>"


def test_a_certificate_goes_whole() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nMIIB\nabc\n-----END CERTIFICATE-----"
    assert redacted(f"ca: {pem}.") == "ca: <certificate>."
