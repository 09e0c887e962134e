"""Rules for every test, of the provider and of the sandbox: a pytest plugin that pyproject.toml names.

In CI a skip is a failure, unless its reason is something that CI cannot provide; a call against a cloud's schema is one
everywhere.
"""

from __future__ import annotations

import gc
import os

import pytest

from tests.schema_findings import SchemaFindings

# Shared tests are no test modules of their own; without this their asserts would not say what they compared.
pytest.register_assert_rewrite("sandbox.tests.node_checks")

# CI runs as root on Linux with Go and every Python package at hand; what it cannot have is listed here.
# The Go module of cluster-autoscaler is not to be had there.
# Nor, in the sets of tests/compat, what is newer than they are.
NOT_IN_CI = ("apache/airflow#72716", "names no cluster-autoscaler", "older packages: ")

# google-auth looks up in the background where a service account may be used, at this host whatever the key file says.
# No setting of its own ends that (GOOGLE_AUTH_TRUST_BOUNDARY_ENABLED is read no more), and another universe domain
# would change how tokens are got. requests takes a proxy for one host from the environment; nothing listens there.
os.environ["https://iamcredentials.googleapis.com_proxy"] = "http://127.0.0.1:9"  # noqa: SIM112


# Many control planes share two cores. A Go program of two threads wakes the second whenever the first has something to
# do: half of all context switches, and a tenth of the CPU time, were such wake-ups. Memory there is enough of.
os.environ.setdefault("GOMAXPROCS", "1")
os.environ.setdefault("GOGC", "200")

# A test process keeps half a gigabyte of modules and of botocore's service models; to look through all of it again
# and again, as by default, was a quarter of its CPU time. What is young is collected as it would be.
gc.set_threshold(50_000, 20, 1_000)


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later collection; pytest has five at its end."""
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SchemaFindings())


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not os.environ.get("CI"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in NOT_IN_CI):
            reporter.write_line(f"SKIPPED in CI, where it has to run: {report.nodeid}: {reason}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
