"""Which names a pod has, and which pods a headless Service names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_sandbox.nodes import hostnames
from gpu_sandbox.nodes.cluster_names import _HostsFile


def pod(name: str = "train-0-x7k", *, ip: str = "127.1.0.1", ready: bool = True, **spec: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": {"name": name, "namespace": "ml", "labels": {"job-name": "train"}},
        "spec": spec,
        "status": {"phase": "Running", "podIP": ip, "conditions": [condition]},
    }


def service(**spec: Any) -> dict[str, Any]:
    usual = {"clusterIP": "None", "selector": {"job-name": "train"}, "publishNotReadyAddresses": False}
    return {"metadata": {"name": "train", "namespace": "ml"}, "spec": {**usual, **spec}}


def names(found: dict[str, Any], **spec: Any) -> list[list[str]]:
    return [names for _, _, names in hostnames.records([service(**spec)], [found])]


MEMBER = {"hostname": "train-0", "subdomain": "train"}


def test_hostname_is_the_pods_name_unless_it_has_one() -> None:
    assert hostnames.hostname(pod()) == "train-0-x7k"
    assert hostnames.hostname(pod(hostname="train-0")) == "train-0"
    assert hostnames.hostname(pod(hostname="h", hostnameOverride="mine.lab")) == "mine.lab"
    assert hostnames.hostname(pod("a" * 62 + "-bcd")) == "a" * 62


def test_kernel_name_is_the_fqdn_only_when_asked() -> None:
    assert hostnames.kernel_name(pod(**MEMBER), "node") == "train-0"
    assert hostnames.kernel_name(pod(**MEMBER, setHostnameAsFQDN=True), "node") == "train-0.train.ml.svc.cluster.local"
    assert hostnames.kernel_name(pod(setHostnameAsFQDN=True), "node") == "train-0-x7k"
    assert hostnames.kernel_name(pod(hostNetwork=True), "node") == "node"
    with pytest.raises(hostnames.NameTooLong, match="too long"):
        hostnames.kernel_name(pod(hostname="h" * 50, subdomain="train", setHostnameAsFQDN=True), "node")


def test_member_has_a_name_of_its_own_and_the_services() -> None:
    assert names(pod(**MEMBER)) == [["train-0.train", "train"]]
    assert names(pod(hostname="train-0", subdomain="other")) == [["train"]]
    assert names(pod(subdomain="train")) == [["train"]]


def test_who_is_no_endpoint() -> None:
    assert names(pod(**MEMBER), clusterIP="10.0.0.7") == []
    assert names(pod(**MEMBER), selector=None) == []
    assert names(pod(**MEMBER), selector={"job-name": "other"}) == []
    assert names(pod(ip="", **MEMBER)) == []
    assert names({**pod(**MEMBER), "status": {**pod()["status"], "phase": "Failed"}}) == []


def test_unready_and_leaving_pods_are_named_only_where_that_is_asked() -> None:
    leaving = pod(**MEMBER)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for one in (leaving, pod(ready=False, **MEMBER)):
        assert names(one) == []
        assert names(one, publishNotReadyAddresses=True) == [["train-0.train", "train"]]


def test_short_names_are_of_the_namespace() -> None:
    record = [("ml", "127.1.0.1", ["train-0.train"])]
    longer = "127.1.0.1\ttrain-0.train.ml.svc.cluster.local\ttrain-0.train.ml.svc\ttrain-0.train.ml"
    assert hostnames.hosts_lines(record, "ml") == f"{longer}\ttrain-0.train\n"
    assert hostnames.hosts_lines(record, "other") == f"{longer}\n"


def test_a_hosts_file_is_rewritten_in_place_and_never_becomes_shorter(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    file = _HostsFile(path=path, namespace="ml", own="127.0.0.1\tlocalhost\n", cluster_dns=True)
    file.write("127.1.0.1\tone\n127.1.0.2\ttwo\n")
    inode, size = path.stat().st_ino, path.stat().st_size
    file.write("127.1.0.2\ttwo\n")
    assert (path.stat().st_ino, path.stat().st_size) == (inode, size)
    assert path.read_text().split() == ["127.0.0.1", "localhost", "127.1.0.2", "two"]
