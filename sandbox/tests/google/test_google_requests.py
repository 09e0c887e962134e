"""Who may call, and what goes wrong with calls: tokens, permissions, throttling, 5xx."""

from __future__ import annotations

import json

import pytest
import requests
from google.api_core import exceptions
from google.auth import iam
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud.container_v1 import ClusterManagerClient
from google.oauth2 import service_account

from airflow_gpu_provider.clouds.google.clients import GoogleClients
from airflow_gpu_provider.errors import PermissionDenied, ServiceDisabled
from gpu_sandbox.faults import Faults
from gpu_sandbox.google import GoogleCloud
from sandbox.tests.google.conftest import EMAIL_SCOPE, SCOPES, Project, access_token


def test_a_token_says_who_calls_and_ends(project: Project) -> None:
    token = access_token(project.cloud)
    identity = project.cloud.identify(token)
    assert identity is not None
    assert identity.username == identity.uid == project.cloud.administrator.unique_id
    by_email = project.cloud.identify(access_token(project.cloud, scopes=[*SCOPES, EMAIL_SCOPE]))
    assert by_email is not None
    assert by_email.username == "sandbox-admin@sandbox-project.iam.gserviceaccount.com"
    assert project.cloud.identify("ya29.made-up") is None
    project.cloud.expire_tokens()
    assert project.cloud.identify(token) is None


def test_a_key_of_another_project_proves_nothing(project: Project) -> None:
    other = GoogleCloud(clock=project.clock, faults=Faults(), events=project.events).keyfile()
    forged = other | {"token_uri": project.cloud.keyfile()["token_uri"]}
    credentials = service_account.Credentials.from_service_account_info(forged, scopes=SCOPES)
    with pytest.raises(Exception, match="Invalid JWT Signature"):
        credentials.refresh(Request())
    reply = requests.get(f"{project.cloud.endpoint_url}/v1/{project.parent}", timeout=120)
    assert reply.status_code == 401
    assert reply.json()["error"]["status"] == "UNAUTHENTICATED"


def test_an_account_may_do_what_it_was_given_and_nothing_else(project: Project) -> None:
    reader = project.cloud.add_identity("reader", permissions=["container.clusters.get"])
    client = ClusterManagerClient(
        credentials=service_account.Credentials.from_service_account_info(project.cloud.keyfile(reader), scopes=SCOPES),
        transport="rest",
        client_options={"api_endpoint": project.cloud.endpoint_url},
    )
    assert client.get_cluster(name=project.parent).name == "k8s-ml"
    with pytest.raises(exceptions.Forbidden, match=r"Required \"container.clusters.update\" permission"):
        client.delete_node_pool(name=project.pool_name())
    session = AuthorizedSession(client.transport._credentials)
    reply = session.get(f"{project.cloud.endpoint_url}/compute/v1/projects/sandbox-project/regions/us-central1")
    assert reply.status_code == 403
    assert "compute.regions.get" in reply.json()["error"]["message"]
    asked = {"permissions": ["container.clusters.get", "container.clusters.update"]}
    test = f"{project.cloud.endpoint_url}/v1/projects/sandbox-project:testIamPermissions"
    assert session.post(test, json=asked).json() == {"permissions": ["container.clusters.get"]}
    assert session.post(test, json={"permissions": ["container.clusters.update"]}).json() == {}


def test_throttling_and_server_errors_by_service(project: Project) -> None:
    project.faults.set_throttle_rate(1.0, service="container")
    with pytest.raises(exceptions.TooManyRequests):
        project.gke.list_node_pools(parent=project.parent, retry=None)
    assert project.compute("GET", "")["name"] == project.cloud.project_id
    project.faults.set_throttle_rate(1.0, service="compute")
    with pytest.raises(exceptions.Forbidden, match="limit 'Read requests per minute'"):
        project.compute("GET", "")
    with pytest.raises(exceptions.Forbidden, match="Rate Limit Exceeded") as operations:
        project.compute("POST", "zones/us-central1-a/instanceGroupManagers/x/resize?size=1")
    assert operations.value.reason == "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED"
    project.faults.clear()
    project.faults.set_error_rate(1.0, service="compute")
    with pytest.raises(exceptions.ServiceUnavailable):
        project.compute("GET", "")
    assert project.gke.list_node_pools(parent=project.parent).node_pools == []
    project.faults.clear()
    assert project.cloud.calls["compute:GetProject"] == 1


def test_an_api_that_is_off_or_out_of_reach(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(project.cloud.connection()))
    clients = GoogleClients(conn_id="google_cloud_default", impersonation_chain=None)
    path = f"projects/{project.cloud.project_id}"
    project.cloud.disable_service("compute")
    with pytest.raises(ServiceDisabled, match="has not been used in project sandbox-project before or it is disabled"):
        clients.compute.get(path, permission="compute.projects.get")
    project.cloud.restrict_service("compute")
    with pytest.raises(PermissionDenied, match=r"VPC Service Controls .*UniqueIdentifier: \S+\)\. Have its admin"):
        clients.compute.get(path, permission="compute.projects.get")
    project.cloud.restrict_service("compute", restricted=False)
    assert clients.compute.get(path, permission="compute.projects.get")["name"] == project.cloud.project_id


def test_a_token_is_for_what_it_was_issued(project: Project) -> None:
    narrow = {"Authorization": f"Bearer {access_token(project.cloud, scopes=[EMAIL_SCOPE])}"}
    reply = requests.get(f"{project.cloud.endpoint_url}/v1/{project.parent}", headers=narrow, timeout=120)
    assert reply.status_code == 403
    error = reply.json()["error"]
    assert error["message"] == "Request had insufficient authentication scopes."
    assert error["details"][0]["reason"] == "ACCESS_TOKEN_SCOPE_INSUFFICIENT"
    with pytest.raises(RefreshError, match="invalid_scope"):
        access_token(project.cloud, scopes=[])


@pytest.mark.parametrize("impersonates", [False, True])
def test_the_cluster_is_told_the_email_of_the_connections_account(
    project: Project, monkeypatch: pytest.MonkeyPatch, impersonates: bool
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(project.cloud.connection()))
    iam_endpoint = "/v1/projects/-/serviceAccounts/{}:generateAccessToken"
    monkeypatch.setattr(iam, "_IAM_ENDPOINT", project.cloud.endpoint_url + iam_endpoint)
    airflow = project.cloud.add_identity("airflow") if impersonates else project.cloud.administrator
    chain = [airflow.email] if impersonates else None
    clients = GoogleClients(conn_id="google_cloud_default", impersonation_chain=chain)
    user = project.cloud.identify(clients.access_token())
    assert user is not None
    assert (user.username, clients.identity) == (airflow.email, airflow.email)
    assert clients.gke.call("get_cluster", permission="", name=project.parent)["name"] == "k8s-ml"


def test_airflows_hook_takes_the_connection(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.google.common.hooks.base_google import GoogleBaseHook

    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(project.cloud.connection()))
    hook = GoogleBaseHook()
    assert hook.project_id == "sandbox-project"
    client = ClusterManagerClient(
        credentials=hook.get_credentials(),
        transport="rest",
        client_options=hook.get_client_options(api_endpoint_override=hook.extras["gke_endpoint"]),
    )
    assert client.list_clusters(parent="projects/sandbox-project/locations/-").clusters[0].endpoint == "127.0.0.1:6443"
