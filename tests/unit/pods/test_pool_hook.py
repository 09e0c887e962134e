"""PoolHook: what the pool's own connection says of pods, and certificates that are files and lie nowhere."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from pathlib import Path

import pytest

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.pods.hook import PoolHook
from airflow_gpu_provider.pools import GpuPool
from gpu_sandbox.pki import CertificateAuthority

LAB = KubernetesGpuPool(name="lab", nodes=["gpu-1"], gpus_per_node=1, kubernetes_conn_id="lab")
TRAIN = EksGpuPool(name="train", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
RESOURCES = {"requests": {"cpu": "10m"}}
SECURITY = {"runAsNonRoot": True}


def sidecar(pool: GpuPool) -> tuple[object, object, object]:
    hook = PoolHook(pool)
    return (
        hook.get_xcom_sidecar_container_image(),
        hook.get_xcom_sidecar_container_resources(),
        hook.get_xcom_sidecar_container_security_context(),
    )


def test_the_xcom_sidecar_is_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "xcom_sidecar_container_image": "registry.example.com/alpine:3",
        "xcom_sidecar_container_resources": json.dumps(RESOURCES),
        "xcom_sidecar_container_security_context": json.dumps(SECURITY),
    }
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    assert sidecar(LAB) == ("registry.example.com/alpine:3", RESOURCES, SECURITY)


def test_where_the_connection_says_nothing_it_is_airflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": "kubernetes"}))
    assert sidecar(LAB) == sidecar(TRAIN) == (None, None, None)


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
