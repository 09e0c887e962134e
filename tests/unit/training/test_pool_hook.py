"""PoolHook: what the pool's own connection says of pods, and certificates that are files and lie nowhere."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from pathlib import Path

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, GpuPodOperator, KubernetesGpuPool
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.errors import ConnectionNotFound, PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.life.hook import PoolHook
from gpu_sandbox.pki import CertificateAuthority

LAB = KubernetesGpuPool(name="lab", nodes=["gpu-1"], gpus_per_node=1, kubernetes_conn_id="lab")
TRAIN = EksGpuPool(name="train", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
GKE = GkeGpuPool(
    name="g",
    cluster_name="ml",
    location="us-central1",
    project_id="ml-prod-1",
    machine_types=["g2-standard-4"],
    max_nodes=1,
)
RESOURCES = {"requests": {"cpu": "10m"}}
SECURITY = {"runAsNonRoot": True}


SETTINGS = {
    "xcom_sidecar_container_image": "registry.example.com/alpine:3",
    "xcom_sidecar_container_resources": json.dumps(RESOURCES),
    "xcom_sidecar_container_security_context": json.dumps(SECURITY),
}


def sidecar(pool: GpuPool, conn_id: str | None = "kubernetes_default") -> tuple[object, object, object]:
    hook = PoolHook(pool, settings_conn_id=conn_id)
    return (
        hook.get_xcom_sidecar_container_image(),
        hook.get_xcom_sidecar_container_resources(),
        hook.get_xcom_sidecar_container_security_context(),
    )


def connection(monkeypatch: pytest.MonkeyPatch, conn_id: str, extra: dict[str, object]) -> None:
    value = json.dumps({"conn_type": "kubernetes", "extra": extra})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)


@pytest.mark.parametrize(("pool", "conn_id"), [(LAB, "lab"), (TRAIN, "kubernetes_default"), (GKE, "team")])
def test_the_xcom_sidecar_is_the_connections(monkeypatch: pytest.MonkeyPatch, pool: GpuPool, conn_id: str) -> None:
    connection(monkeypatch, conn_id, SETTINGS)
    assert sidecar(pool, conn_id) == ("registry.example.com/alpine:3", RESOURCES, SECURITY)


@pytest.mark.parametrize("pool", [TRAIN, GKE], ids=["EKS", "GKE"])
def test_the_xcom_sidecar_of_a_cloud_s_pod_is_the_connection_s(monkeypatch: pytest.MonkeyPatch, pool: GpuPool) -> None:
    connection(monkeypatch, "kubernetes_default", SETTINGS)
    task = GpuPodOperator(task_id="train", gpu_pool=pool, image="train:1", name="train", do_xcom_push=True)
    containers = task.build_pod_request_obj().spec.containers
    (image,) = (each.image for each in containers if each.name == "airflow-xcom-sidecar")
    assert image == SETTINGS["xcom_sidecar_container_image"]


def test_a_pool_that_is_reached_by_a_kubernetes_connection_has_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, "lab", {})
    connection(monkeypatch, "kubernetes_default", SETTINGS)
    assert sidecar(LAB) == (None, None, None)


def test_settings_may_be_objects_and_have_the_prefix_of_old_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, "team", {"extra__kubernetes__xcom_sidecar_container_resources": RESOURCES})
    assert sidecar(TRAIN, "team") == (None, RESOURCES, None)


def test_where_the_connection_says_nothing_it_is_airflows(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, "lab", {})
    assert sidecar(LAB) == sidecar(TRAIN) == sidecar(TRAIN, None) == (None, None, None)


def test_another_connection_than_the_default_has_to_exist() -> None:
    with pytest.raises(ConnectionNotFound, match="'team' was not found"):
        sidecar(TRAIN, "team")


@pytest.mark.parametrize("value", ["{limits", "[1]", '"256Mi"', ["256Mi"]])
def test_a_setting_that_is_no_object_is_named(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    connection(monkeypatch, "team", {"xcom_sidecar_container_resources": value})
    with pytest.raises(PoolSpecError, match=r"xcom_sidecar_container_resources in .* connection team"):
        sidecar(TRAIN, "team")


def test_resources_with_other_keys_than_kubernetes_name_their_container(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, "team", {"xcom_sidecar_container_resources": {"memory": "32Mi"}})
    task = GpuPodOperator(task_id="t", gpu_pool=TRAIN, image="t:1", do_xcom_push=True, kubernetes_conn_id="team")
    with pytest.raises(PoolSpecError, match="container airflow-xcom-sidecar are no resource requirements"):
        task.build_pod_request_obj()


def test_certificates_can_be_read_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = CertificateAuthority(tmp_path / "pki", name="ca")
    pair = authority.client("client", user="somebody")
    ca, certificate, key = authority.certificate, pair.certificate, pair.key
    kept = tmp_path / "tmp"
    kept.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(kept))

    hook = PoolHook(KubernetesGpuPool(name="lab", nodes=["one"], gpus_per_node=1))
    hook.access = ClusterAccess(
        server="https://127.0.0.1:1",
        ca_data=base64.b64encode(ca).decode(),
        client_certificate_data=base64.b64encode(certificate).decode(),
        client_key_data=base64.b64encode(key).decode(),
    )
    for client in (hook.core_v1_client, hook.new_client()):
        configuration = client.api_client.configuration
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
        assert len(context.get_ca_certs()) == 1
    assert not list(kept.iterdir())


def test_exec_trusts_what_the_system_does_where_the_cluster_names_no_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = CertificateAuthority(tmp_path / "pki", name="public").certificate_file
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    hook = PoolHook(TRAIN)
    hook.access = ClusterAccess(server="https://gke.example.com")
    assert hook.new_client().api_client.configuration.ssl_ca_cert == str(trusted)
