"""What a container finds around it: environment, volumes, identity, file system, network."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from gpu_sandbox.control_plane import ControlPlane
from sandbox.tests.process_nodes.conftest import Cluster


def test_environment_from_every_source(cluster: Cluster) -> None:
    core, namespace = cluster.core, cluster.namespace
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "cm"}, "data": {"A": "from-cm", "B": "b"}})
    core.create_namespaced_secret(namespace, {"metadata": {"name": "sec"}, "stringData": {"TOKEN": "s3cret"}})

    def field(path: str) -> dict[str, object]:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    name = cluster.sh(
        "env",
        metadata={"labels": {"team": "ml"}, "annotations": {"why": "test"}},
        envFrom=[{"configMapRef": {"name": "cm"}, "prefix": "CM_"}],
        env=[
            {"name": "PLAIN", "value": "v"},
            {"name": "EXPANDED", "value": "$(PLAIN)-$(CM_A)-$(NOT_THERE)-$$(PLAIN)"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "TOKEN"}}},
            {"name": "OPTIONAL", "valueFrom": {"secretKeyRef": {"name": "no", "key": "no", "optional": True}}},
            {"name": "POD", **field("metadata.name")},
            {"name": "NS", **field("metadata.namespace")},
            {"name": "TEAM", **field("metadata.labels['team']")},
            {"name": "WHY", **field("metadata.annotations['why']")},
            {"name": "NODE", **field("spec.nodeName")},
            {"name": "SA", **field("spec.serviceAccountName")},
            {"name": "IP", **field("status.podIP")},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        ],
        resources={"limits": {"cpu": "1500m", "memory": "64Mi"}},
    )
    pod = cluster.wait(name, "Succeeded")
    found = dict(line.split("=", 1) for line in cluster.logs(name).splitlines())
    assert found["CM_A"] == "from-cm"
    assert found["EXPANDED"] == "v-from-cm-$(NOT_THERE)-$(PLAIN)"
    assert found["TOKEN"] == "s3cret"
    assert "OPTIONAL" not in found
    assert (found["POD"], found["NS"], found["TEAM"], found["WHY"]) == (name, namespace, "ml", "test")
    assert (found["NODE"], found["SA"]) == ("cpu-node", "default")
    assert found["IP"] == pod.status.pod_ip
    assert (found["CPU"], found["MEM"]) == ("2", "64")
    assert found["HOSTNAME"] == name
    assert "AIRFLOW_GPU_SANDBOX_CONTROLPLANE" not in found, "nothing of the agent's own environment gets in"


def test_arguments_are_expanded(cluster: Cluster) -> None:
    name = cluster.pod("echo", "$(WORD)", "$$(WORD)", env=[{"name": "WORD", "value": "hello"}])
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name) == "hello $(WORD)\n"


def test_volumes_of_every_kind(cluster: Cluster, tmp_path: Path) -> None:
    core, namespace = cluster.core, cluster.namespace
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "cm"}, "data": {"a.txt": "A", "b.txt": "B"}})
    core.create_namespaced_secret(namespace, {"metadata": {"name": "sec"}, "stringData": {"k": "K"}})
    (tmp_path / "data").write_text("from the host")
    script = """
        cat /etc/config/renamed; ls /etc/config | wc -l; stat -c %a /etc/config/renamed
        cat /secret/k; cat /all/k /all/a.txt /all/labels
        cat /host/data; touch /host/new && echo wrote
        touch /read-only/x 2>/dev/null || echo refused
        cat /single.txt; df --output=size /dev/shm | tail -1 | tr -d ' '
        echo x > /scratch/deep/x; cat /whole/sub/deep/x
    """
    name = cluster.sh(
        script,
        metadata={"labels": {"team": "ml"}},
        volumes=[
            {
                "name": "cm",
                "configMap": {"name": "cm", "items": [{"key": "a.txt", "path": "renamed"}], "defaultMode": 0o640},
            },
            {"name": "cm2", "configMap": {"name": "cm"}},
            {"name": "sec", "secret": {"secretName": "sec"}},
            {"name": "host", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "128Mi"}},
            {"name": "scratch", "emptyDir": {}},
            {
                "name": "all",
                "projected": {
                    "sources": [
                        {"secret": {"name": "sec"}},
                        {"configMap": {"name": "cm"}},
                        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                    ]
                },
            },
        ],
        volumeMounts=[
            {"name": "cm", "mountPath": "/etc/config"},
            {"name": "sec", "mountPath": "/secret", "readOnly": True},
            {"name": "all", "mountPath": "/all"},
            {"name": "host", "mountPath": "/host"},
            {"name": "host", "mountPath": "/read-only", "readOnly": True},
            {"name": "cm2", "mountPath": "/single.txt", "subPath": "b.txt"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "scratch", "mountPath": "/whole"},
            {"name": "scratch", "mountPath": "/scratch/deep", "subPath": "sub/deep"},
        ],
    )
    end = cluster.end(name)
    assert end.exit_code == 0, cluster.logs(name)
    assert cluster.logs(name).split("\n") == [
        *["A1", "640", 'KKAteam="ml"', "from the hostwrote", "refused", "B131072", "x", ""]
    ]
    assert (tmp_path / "new").exists()
    assert not Path("/single.txt").exists()
    assert not Path("/etc/config").exists()


def test_a_memory_volume_is_shared_by_the_containers_of_a_pod(cluster: Cluster) -> None:
    mounts = [{"name": "m", "mountPath": "/m", "subPath": "part"}]
    init = {"name": "i", "image": "busybox:1", "command": ["sh", "-c", "echo hi > /m/x"], "volumeMounts": mounts}
    volumes = [{"name": "m", "emptyDir": {"medium": "Memory"}}]
    name = cluster.sh("cat /m/x; stat -f -c %T /m", initContainers=[init], volumes=volumes, volumeMounts=mounts)
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name) == "hi\ntmpfs\n"


def test_the_service_account_token_works(cluster: Cluster, control_plane: ControlPlane) -> None:
    script = (
        "import json, os, ssl, urllib.request\n"
        "d = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "host, port = os.environ['KUBERNETES_SERVICE_HOST'], os.environ['KUBERNETES_SERVICE_PORT']\n"
        "url = f'https://{host}:{port}/apis/authentication.k8s.io/v1/selfsubjectreviews'\n"
        "r = urllib.request.Request(url, data=b'{}', headers={'Content-Type': 'application/json',"
        " 'Authorization': 'Bearer ' + open(d + 'token').read()})\n"
        "a = urllib.request.urlopen(r, context=ssl.create_default_context(cafile=d + 'ca.crt'))\n"
        "print(json.dumps(json.load(a)['status']['userInfo']))"
    )
    name = cluster.pod("python", "-c", script, image="python:3.11")
    cluster.wait(name, "Succeeded")
    user = json.loads(cluster.logs(name))
    assert user["username"] == f"system:serviceaccount:{cluster.namespace}:default"
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == [name]


def test_what_a_container_writes_stays_in_it(cluster: Cluster) -> None:
    marker = f"process-node-{os.getpid()}"
    folders = ("", "/etc", "/usr/lib", "/var/lib", "/tmp", "/root", "/run", "/opt")
    name = cluster.sh(" && ".join(f"touch {folder}/{marker}" for folder in folders) + " && echo all")
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name) == "all\n"
    assert not [folder for folder in folders if Path(f"{folder}/{marker}").exists()]


def test_a_container_sees_its_own_processes_and_its_own_name(cluster: Cluster) -> None:
    name = cluster.sh("echo /proc/[0-9]*; cat /proc/1/comm; uname -n; ls /dev/vda /dev/sda 2>&1 | grep -c cannot")
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name).splitlines() == ["/proc/1", "sh", name, "2"]
    assert socket.gethostname() != name


def test_the_machines_kernel_settings_are_out_of_reach(cluster: Cluster) -> None:
    script = "exec 2>&1; touch /sys/x; echo 0 > /proc/sys/kernel/panic; true"
    assert cluster.output(script).count("Read-only file system") == 2


def test_security_context(cluster: Cluster) -> None:
    if os.geteuid() != 0:
        pytest.skip("a user namespace of one user has no other users")
    context = {"securityContext": {"runAsUser": 1234, "runAsGroup": 2345, "supplementalGroups": [7]}}
    name = cluster.pod(
        containers=[
            {
                "name": "main",
                "image": "busybox:1",
                "command": ["sh", "-c", "id -u; id -g; id -G; grep CapEff /proc/self/status"],
                "securityContext": {"runAsGroup": 3456},
            }
        ],
        **context,
    )
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name).split("\n")[:3] == ["1234", "3456", "3456 7"]


def test_working_dir_is_made(cluster: Cluster) -> None:
    name = cluster.sh("pwd", workingDir="/some/where/new")
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name) == "/some/where/new\n"


def test_shared_memory_is_64_mib_as_in_any_container(cluster: Cluster) -> None:
    assert cluster.output("df --output=size /dev/shm | tail -1 | tr -d ' '") == "65536\n"


def test_a_pods_address_is_its_own(cluster: Cluster) -> None:
    one, two = cluster.sh("true"), cluster.sh("true")
    addresses = {cluster.wait(name, "Succeeded").status.pod_ip for name in (one, two)}
    assert len(addresses) == 2
