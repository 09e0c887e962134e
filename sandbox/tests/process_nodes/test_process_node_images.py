"""Images that are known, slow, unknown; what containers find in them; what they cannot be configured with."""

from __future__ import annotations

import re
import time

from sandbox.tests.process_nodes.conftest import Cluster


def test_an_unknown_image_backs_off_and_names_the_image(cluster: Cluster) -> None:
    name = cluster.pod("true", image="registry.example.com/team/nothing:1")
    message = cluster.waiting(name, "ErrImagePull")
    assert 'failed to pull and unpack image "registry.example.com/team/nothing:1"' in message
    message = cluster.waiting(name, "ImagePullBackOff")
    assert message.startswith('Back-off pulling image "registry.example.com/team/nothing:1": ErrImagePull: rpc error')
    assert cluster.read(name).status.phase == "Pending"
    cluster.wait_event(name, "BackOff")
    reasons = [(kind, reason) for kind, reason, _ in cluster.events(name)]
    assert reasons[:3] == [("Normal", "Pulling"), ("Warning", "Failed"), ("Warning", "Failed")]
    cluster.delete(name)
    cluster.wait_gone(name)


def test_never_pulling_what_is_not_there(cluster: Cluster) -> None:
    name = cluster.pod("true", image="nothing:1", imagePullPolicy="Never")
    message = cluster.waiting(name, "ErrImageNeverPull")
    assert message == 'Container image "nothing:1" is not present with pull policy of Never'


def test_an_image_is_known_with_and_without_its_registry(cluster: Cluster) -> None:
    for reference in ("docker.io/library/busybox:1.36", "library/busybox", "index.docker.io/library/busybox:2"):
        cluster.wait(cluster.pod("true", image=reference), "Succeeded")


def test_a_slow_pull_happens_once_for_a_node(cluster: Cluster) -> None:
    began = time.monotonic()
    first = cluster.pod("true", image="slow:1")
    waits = cluster.seen(first, lambda pod: any(s.state.waiting for s in pod.status.container_statuses or ()))[-1]
    assert waits.status.phase == "Pending"
    cluster.wait(first, "Succeeded")
    assert time.monotonic() - began > 1.4
    pulled = re.match(r'Successfully pulled image "slow:1" in ([\d.]+)s', cluster.wait_event(first, "Pulled"))
    assert pulled
    assert float(pulled[1]) >= 1.5
    second = cluster.pod("true", image="slow:1")
    cluster.wait(second, "Succeeded")
    already = 'Container image "slow:1" already present on machine and can be accessed by the pod'
    assert cluster.wait_event(second, "Pulled") == already


def test_an_image_folder_is_the_app(cluster: Cluster) -> None:
    name = cluster.pod("python", "train.py", image="app:1")
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name) == "trained in /app yes\n"


def test_the_default_command_of_an_image(cluster: Cluster) -> None:
    name = cluster.pod(image="python:3.11")
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name) == "default\n"
    assert cluster.end(cluster.pod(image="busybox:1")).reason == "StartError"


def test_a_missing_config_map_is_waited_for(cluster: Cluster) -> None:
    reference = {"configMapKeyRef": {"name": "late", "key": "colour"}}
    name = cluster.sh("echo $COLOUR", env=[{"name": "COLOUR", "valueFrom": reference}])
    assert cluster.waiting(name, "CreateContainerConfigError") == 'configmap "late" not found'
    assert cluster.wait_event(name, "Failed") == 'Error: configmap "late" not found'
    cluster.core.create_namespaced_config_map(cluster.namespace, {"metadata": {"name": "late"}, "data": {"x": "y"}})
    key = f"couldn't find key colour in ConfigMap {cluster.namespace}/late"
    cluster.until_container(name, lambda s: s.state.waiting and s.state.waiting.message == key, key)
    cluster.core.patch_namespaced_config_map("late", cluster.namespace, {"data": {"colour": "red"}})
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name) == "red\n"


def test_a_missing_secret_is_named(cluster: Cluster) -> None:
    name = cluster.sh("true", envFrom=[{"secretRef": {"name": "gone"}}])
    assert cluster.waiting(name, "CreateContainerConfigError") == 'secret "gone" not found'


def test_a_volume_from_a_missing_secret_is_a_failed_mount(cluster: Cluster) -> None:
    volumes = [{"name": "v", "secret": {"secretName": "later"}}]
    mounts = [{"name": "v", "mountPath": "/secret"}]
    name = cluster.sh("cat /secret/k", volumes=volumes, volumeMounts=mounts)
    text = cluster.wait_event(name, "FailedMount")
    assert text == 'MountVolume.SetUp failed for volume "v" : secret "later" not found'
    assert cluster.waiting(name, "ContainerCreating") == "None"
    cluster.core.create_namespaced_secret(
        cluster.namespace, {"metadata": {"name": "later"}, "stringData": {"k": "here"}}
    )
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name) == "here"
