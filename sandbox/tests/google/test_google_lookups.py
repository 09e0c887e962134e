"""Processes that use a sandbox's Google Cloud look up nothing at Google."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gpu_sandbox.airflow_home import AirflowHome
from sandbox.tests.google.conftest import Project

DIVERTED = "https://iamcredentials.googleapis.com_proxy"
"""By which tests.rules keep what they start from looking up anything."""
CALLS = """
import json, os, sys, threading
asked = set()
sys.addaudithook(lambda event, given: event == "socket.getaddrinfo" and asked.add(str(given[0])))
from airflow import settings
settings.initialize()
from google.auth.transport.requests import AuthorizedSession
from google.oauth2.service_account import Credentials
key = json.loads(os.environ["KEY"])
credentials = Credentials.from_service_account_info(key, scopes=["https://www.googleapis.com/auth/cloud-platform"])
project = os.environ["GPU_SANDBOX_GOOGLE_ENDPOINT"] + "/compute/v1/projects/" + key["project_id"]
assert AuthorizedSession(credentials).get(project).ok
for thread in threading.enumerate():
    if type(thread).__module__.startswith("google.auth"):
        thread.join()
print(json.dumps(sorted(asked)))
"""


def test_a_process_of_an_airflow_asks_nobody_but_the_sandbox(project: Project, tmp_path: Path) -> None:
    env = {"GPU_SANDBOX_GOOGLE_ENDPOINT": project.cloud.endpoint_url, "KEY": json.dumps(project.cloud.keyfile())}
    home = AirflowHome(tmp_path / "home", tmp_path, env)
    home.prepare()
    home.environment.pop(DIVERTED, None)
    ran = subprocess.run(
        [sys.executable, "-c", CALLS], env=home.environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(ran.stdout.splitlines()[-1]) == ["127.0.0.1"]
