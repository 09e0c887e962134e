"""An AWS account of its own for each test, in AWS's own times on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_sandbox.aws import AwsTimings
from gpu_sandbox.faults import Faults
from tests.sandbox.aws_account import TIMINGS, Account


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def timings() -> AwsTimings:
    return TIMINGS


@pytest.fixture
def account(faults: Faults, timings: AwsTimings) -> Iterator[Account]:
    """Its instances are nodes at once."""
    account = Account.fresh(faults=faults, timings=timings, nodes_join=True)
    yield account
    account.close()
