"""Names that pods resolve: their own, and their peers' through headless Services, while both come and go."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from sandbox.tests.process_nodes.conftest import Cluster

# What a training does that is up before its peer is: it asks again.
_ASK = """
import socket, sys, time
name, wanted = sys.argv[1], set(sys.argv[2:])
deadline = time.monotonic() + 100
while time.monotonic() < deadline:
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(name, 1, socket.AF_INET, socket.SOCK_STREAM)}
    except socket.gaierror:
        found = set()
    if (not wanted and found) or (wanted and found == (wanted - {"none"})):
        break
    time.sleep(0.05)
print(*sorted(found))
"""
# Rank 0 listens on its own name and the port of the environment, rank 1 sends it a word.
_SERVE = """
import socket
with socket.create_server((socket.gethostname(), 29500)) as server:
    peer, address = server.accept()
    print(peer.recv(100).decode())
"""
_SAY = """
import socket, sys, time
for _ in range(1000):
    try:
        with socket.create_connection((sys.argv[1], 29500)) as peer:
            peer.send(sys.argv[2].encode())
            break
    except OSError:
        time.sleep(0.1)
"""


def service(cluster: Cluster, name: str, **spec: Any) -> None:
    body = {
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"gang": name}, "publishNotReadyAddresses": True, **spec},
    }
    cluster.core.create_namespaced_service(cluster.namespace, body)


def member(cluster: Cluster, gang: str, rank: int, *command: str, **spec: Any) -> str:
    names = {"hostname": f"{gang}-{rank}", "subdomain": gang}
    metadata = {"labels": {"gang": gang}}
    return cluster.pod(*command, **{"metadata": metadata, "image": "python:3", **names, **spec})


def ip_of(cluster: Cluster, name: str) -> str:
    return str(cluster.until(name, lambda pod: pod.status.pod_ip, "an address").status.pod_ip)


def resolved(cluster: Cluster, name: str, *wanted: str) -> list[str]:
    """The addresses that a pod of the namespace finds, when they are those wanted (without any: when there is one)."""
    pod = cluster.pod("python", "-c", _ASK, name, *wanted, image="python:3")
    cluster.wait(pod, "Succeeded")
    return cluster.logs(pod).split()


def test_a_pod_resolves_its_own_hostname_as_in_any_cluster(cluster: Cluster) -> None:
    ask = "import socket; name = socket.gethostname(); print(name, socket.gethostbyname(name), socket.getfqdn())"
    name = member(cluster, "own", 0, "python", "-c", ask)
    ip = ip_of(cluster, name)
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name).split() == ["own-0", ip, f"own-0.own.{cluster.namespace}.svc.cluster.local"]


def test_peers_resolve_by_every_name_that_the_cluster_dns_has(cluster: Cluster) -> None:
    service(cluster, "train")
    name = member(cluster, "train", 1, "sleep", "600")
    ip = ip_of(cluster, name)
    for suffix in ("", f".{cluster.namespace}", f".{cluster.namespace}.svc", f".{cluster.namespace}.svc.cluster.local"):
        assert resolved(cluster, f"train-1.train{suffix}") == [ip]


def test_a_peer_that_starts_later_becomes_resolvable_and_one_that_goes_does_not_stay(cluster: Cluster) -> None:
    service(cluster, "train")
    waiting = cluster.pod("python", "-c", _ASK, "train-1.train", image="python:3")
    cluster.until_container(waiting, lambda s: s.state.running, "running")
    peer = member(cluster, "train", 1, "sleep", "600")
    ip = ip_of(cluster, peer)
    cluster.wait(waiting, "Succeeded")
    assert cluster.logs(waiting).split() == [ip]
    leaving = cluster.pod("python", "-c", _ASK, "train-1.train", "none", image="python:3")
    cluster.until_container(leaving, lambda s: s.state.running, "running")
    cluster.delete(peer, grace_period_seconds=0)
    cluster.wait(leaving, "Succeeded")
    assert cluster.logs(leaving).split() == []


def test_the_name_of_the_service_stands_for_all_its_pods(cluster: Cluster) -> None:
    service(cluster, "train")
    ips = {ip_of(cluster, member(cluster, "train", rank, "sleep", "600")) for rank in (0, 1)}
    assert set(resolved(cluster, "train", *ips)) == ips


def test_without_its_service_or_of_another_name_a_pod_has_no_name(cluster: Cluster) -> None:
    service(cluster, "another", selector={"gang": "train"})
    name = member(cluster, "train", 0, "sleep", "600")
    ip = ip_of(cluster, name)
    assert resolved(cluster, "another", ip) == [ip]
    assert "train-0.train" not in other_lines(cluster, name)
    assert "train-0.another" not in hosts(cluster, name)


def test_only_ready_pods_have_names_unless_the_service_says_otherwise(cluster: Cluster) -> None:
    service(cluster, "train", publishNotReadyAddresses=False)
    probe = {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1}
    name = member(cluster, "train", 0, "sleep", "600", readinessProbe=probe)
    cluster.until_container(name, lambda s: s.state.running, "running")
    ip = ip_of(cluster, name)
    assert "train-0.train." not in other_lines(cluster, name)
    cluster.exec(name, "touch", "/tmp/ready")
    assert resolved(cluster, "train-0.train") == [ip]


def test_an_ended_pod_has_no_name(cluster: Cluster) -> None:
    service(cluster, "train")
    ended = member(cluster, "train", 0, "true")
    cluster.wait(ended, "Succeeded")
    name = member(cluster, "train", 1, "sleep", "600")
    eventually(lambda: "train-1.train." in other_lines(cluster, name))
    assert "train-0.train." not in other_lines(cluster, name)


def test_two_gangs_use_the_same_port(cluster: Cluster) -> None:
    servers = {}
    for gang in ("red", "blue"):
        service(cluster, gang)
        servers[gang] = member(cluster, gang, 0, "python", "-c", _SERVE)
        member(cluster, gang, 1, "python", "-c", _SAY, f"{gang}-0.{gang}", f"{gang} speaks")
    for gang, name in servers.items():
        cluster.wait(name, "Succeeded")
        assert cluster.logs(name) == f"{gang} speaks\n"


def test_a_pod_with_another_resolver_does_not_see_the_cluster(cluster: Cluster) -> None:
    service(cluster, "train")
    member(cluster, "train", 0, "sleep", "600")
    inside = cluster.pod("sleep", "600")
    eventually(lambda: "train-0.train" in hosts(cluster, inside))
    outside = cluster.pod("sleep", "600", dnsPolicy="Default")
    assert "train-0.train" not in hosts(cluster, outside)


def test_names_of_its_own_choice(cluster: Cluster) -> None:
    name = member(
        cluster,
        "sub",
        0,
        *("sh", "-c", "hostname; grep -A9 -i added /etc/hosts"),
        setHostnameAsFQDN=True,
        hostAliases=[{"ip": "127.9.9.9", "hostnames": ["mlflow", "mlflow.lab"]}],
        subdomain="s",
        hostname="h",
    )
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name).splitlines() == [
        f"h.s.{cluster.namespace}.svc.cluster.local",
        "# Entries added by HostAliases.",
        "127.9.9.9\tmlflow\tmlflow.lab",
    ]


def test_a_kernel_has_no_room_for_a_long_fqdn(cluster: Cluster) -> None:
    name = member(cluster, "s" * 40, 0, "true", setHostnameAsFQDN=True)
    assert "is too long (64 characters is the max" in cluster.wait_event(name, "FailedCreatePodSandBox")
    assert cluster.read(name).status.phase == "Pending"


def test_a_volume_at_etc_hosts_is_the_pods_own_matter(cluster: Cluster) -> None:
    cluster.core.create_namespaced_config_map(
        cluster.namespace, {"metadata": {"name": "hosts"}, "data": {"hosts": "127.0.0.1 mine\n"}}
    )
    mount = {"name": "hosts", "mountPath": "/etc/hosts", "subPath": "hosts"}
    volume = {"name": "hosts", "configMap": {"name": "hosts"}}
    assert cluster.output("cat /etc/hosts", volumes=[volume], volumeMounts=[mount]) == "127.0.0.1 mine\n"


def hosts(cluster: Cluster, name: str) -> str:
    cluster.until_container(name, lambda s: s.state.running, "running")
    return cluster.exec(name, "cat", "/etc/hosts")


def other_lines(cluster: Cluster, name: str) -> str:
    """What the pod's hosts file has beyond the line of its own."""
    return "".join(hosts(cluster, name).splitlines(keepends=True)[8:])


def eventually(condition: Callable[[], bool], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {seconds} s")
        time.sleep(0.05)
