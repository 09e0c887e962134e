"""A leftover pod that cannot be deleted keeps no machine but its own: the run's demand is given up all the same."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import Mock

import pytest

from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply import reconcile
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler


def test_the_demand_is_given_up_though_a_pod_cannot_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [
        Pod(
            namespace="ml",
            name=name,
            node=None,
            phase="Succeeded",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for name in ("kept", "other")
    ]
    asked: list[str] = []

    def delete(_api: object, pod: Pod) -> bool:
        asked.append(pod.name)
        if pod.name == "kept":
            raise PermissionDenied("A policy refuses it.", "Change the policy.")
        return True

    monkeypatch.setattr(reconcile, "list_demand", Mock(return_value=()))
    monkeypatch.setattr(reconcile, "list_run_pods", Mock(return_value=pods))
    monkeypatch.setattr(reconcile, "delete_pod", delete)
    monkeypatch.setattr(reconcile, "Ledger", Mock())
    given_up = Mock()
    monkeypatch.setattr(Reconciler, "delete_demand_and_reconcile", given_up)
    reconciler = Reconciler(Mock(), Mock(), Mock(), holder="test", report=print, clock=Mock(), at_once=1)

    key = Mock(spec=DemandKey, hash="x")
    with pytest.raises(PermissionDenied, match="Pod ml/kept could not be deleted: A policy refuses it"):
        reconciler.release(key)

    given_up.assert_called_once_with(key)
    assert sorted(asked) == ["kept", "other"]


def test_the_demand_is_given_up_though_code_cannot_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    code = [Mock(__str__=lambda _, name=name: name) for name in ("ml/first", "ml/kept")]

    def delete(_api: object, each: object) -> bool:
        if each is code[1]:
            raise PermissionDenied("A policy refuses it.", "Change the policy.")
        return True

    for name, double in {"list_demand": (), "list_run_pods": [], "list_code": code}.items():
        monkeypatch.setattr(reconcile, name, Mock(return_value=double))
    monkeypatch.setattr(reconcile, "delete_code", delete)
    monkeypatch.setattr(reconcile, "Ledger", Mock())
    given_up = Mock()
    monkeypatch.setattr(Reconciler, "delete_demand_and_reconcile", given_up)
    reconciler = Reconciler(Mock(), Mock(), Mock(), holder="test", report=print, clock=Mock(), at_once=1)
    with pytest.raises(PermissionDenied, match="Code ml/kept could not be deleted: A policy refuses it"):
        reconciler.release(Mock(spec=DemandKey, hash="x"))
    given_up.assert_called_once()
