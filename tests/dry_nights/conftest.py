"""Nights without a scheduler process, a triggerer, a cluster or a cloud: one Airflow for each test.

Its database is in memory. With DRY_NIGHTS_DATABASE=postgresql it is a PostgreSQL, on which `make test` runs a handful.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.dry_nights.database import ON_POSTGRESQL, Database, InMemory, OnServer
from tests.postgresql import Postgresql

if TYPE_CHECKING:
    from tests.dry_nights.installation import Airflow

# Airflow reads it once, when it is imported; the scheduler says much about each look.
os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")

OF_POSTGRESQL = ("test_stored.py", "test_foreign_bytes.py")
"""What SQLite would take anyway."""
REPRESENTATIVE = (*OF_POSTGRESQL, "test_ends.py", "test_costs.py", "test_slots.py")
"""What `make test` runs on PostgreSQL: each end of a block, the queries of a bill, and locks on rows."""

collect_ignore = () if ON_POSTGRESQL else OF_POSTGRESQL


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ON_POSTGRESQL and item.path.name not in REPRESENTATIVE:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    home = tmp_path_factory.mktemp("airflow")
    if not ON_POSTGRESQL:
        yield InMemory(home)
        return
    with Postgresql() as server:
        database = OnServer(home, server)
        yield database
        database.close()


@pytest.fixture
def airflow(database: Database) -> Airflow:
    from tests.dry_nights.installation import Airflow

    return Airflow(database.restore())
