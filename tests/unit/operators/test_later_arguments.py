"""Arguments that KubernetesPodOperator's newer releases have: with the release that is installed, whichever it is."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.definitions.connection import Connection
from kubernetes.client import models as k8s

from airflow_gpu_provider import GpuPodOperator
from airflow_gpu_provider.errors import PoolSpecError
from tests.unit.training.test_pod_placement import a_pool


def task(**arguments: Any) -> GpuPodOperator:
    return GpuPodOperator(task_id="train", gpu_pool=a_pool(), namespace="ml", **arguments)


def sidecar_of(operator: GpuPodOperator) -> k8s.V1Container:
    containers = operator.build_pod_request_obj().spec.containers
    return next(each for each in containers if each.name == "airflow-xcom-sidecar")


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps({"xcom_sidecar_container_security_context": {"runAsUser": 2}})
    connection = Connection(conn_id="kubernetes_default", conn_type="kubernetes", extra=extra)
    monkeypatch.setattr(BaseHook, "get_connection", lambda conn_id: connection)


def test_runtime_class_of_the_task_goes_before_that_of_its_template() -> None:
    template = {"metadata": {"name": "x"}, "spec": {"runtimeClassName": "kata", "containers": [{"name": "base"}]}}
    assert task(runtime_class_name="nvidia").build_pod_request_obj().spec.runtime_class_name == "nvidia"
    assert task(pod_template_dict=template).build_pod_request_obj().spec.runtime_class_name == "kata"
    both = task(pod_template_dict=template, runtime_class_name="nvidia")
    assert both.build_pod_request_obj().spec.runtime_class_name == "nvidia"


def test_the_sidecar_s_security_context_is_the_task_s_or_else_the_connection_s() -> None:
    own = k8s.V1SecurityContext(run_as_user=1)
    assert sidecar_of(task(do_xcom_push=True, xcom_sidecar_container_security_context=own)).security_context == own
    assert sidecar_of(task(do_xcom_push=True)).security_context == {"runAsUser": 2}


def test_they_are_taken_from_default_args_and_by_mapped_tasks() -> None:
    given = {"runtime_class_name": "nvidia", "on_kill_action": "keep_pod", "durable": False}
    with DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1), default_args=given):
        one = task()
        mapped = GpuPodOperator.partial(task_id="sweep", gpu_pool=a_pool(), on_kill_action="delete_pod")
        other = mapped.expand(arguments=[["a"]]).unmap({"arguments": ["a"]})
    assert (one.runtime_class_name, one.on_kill_action, one.reattach_on_restart) == ("nvidia", "keep_pod", False)
    assert (other.runtime_class_name, other.on_kill_action) == ("nvidia", "delete_pod")


def test_durable_goes_before_what_it_replaces() -> None:
    assert (task().reattach_on_restart, task().durable) == (True, True)
    assert task(durable=True, reattach_on_restart=False).reattach_on_restart is True
    assert task(reattach_on_restart=False).durable is False


def test_another_on_kill_action_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(PoolSpecError, match="on_kill_action='keep'"):
        task(on_kill_action="keep")
