"""Property tests have no deadline for an example: a busy machine would break it. What takes longest begins first."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.sharing_out import in_order

settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")

LONGEST_FIRST = (
    "test_protocol_model.py",
    "test_train_trees.py",
    "test_airflow_arguments.py",
    "test_wait_contract.py",
    "test_renewed_credentials.py",
    "test_decision_properties.py",
    "test_run_identity.py",
)


def pytest_configure(config: pytest.Config) -> None:
    # By itself pytest-xdist begins with the files of the most tests.
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_order(items, LONGEST_FIRST)
