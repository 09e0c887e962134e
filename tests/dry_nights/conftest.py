"""Nights without a scheduler process, a triggerer, a cluster or a cloud: one Airflow for each test, in memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.dry_nights.database import Database

if TYPE_CHECKING:
    from tests.dry_nights.installation import Airflow

# Airflow reads it once, when it is imported; the scheduler says much about each look.
os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return Database(tmp_path_factory.mktemp("airflow"))


@pytest.fixture
def airflow(database: Database) -> Airflow:
    from tests.dry_nights.installation import Airflow

    return Airflow(database.restore())
