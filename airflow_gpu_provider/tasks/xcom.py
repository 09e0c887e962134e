"""Pushes an XCom: what is in it may quote a pod's log, an event or a person, and has to fit into Airflow's database."""

from __future__ import annotations

from airflow.sdk import Context

from airflow_gpu_provider.untrusted import storable

UNCOLLECTED_SUCCESS = "uncollected"
"""The XCom key under which a scale-down leaves the pods that had succeeded, and that no worker had collected."""


def push(context: Context, key: str, value: object) -> None:
    """Push a JSON value; texts in it become plain, and numbers that JSON does not know None (see docs/xcom.md)."""
    context["ti"].xcom_push(key=key, value=storable(value))
