"""How soon the page GPU pools shows thirty days of five nights, beside Airflow's own grid of that DAG.

`python -m benchmarks.first_draw`: the nights are run, by tasks that leave recorded bills, which takes minutes; needs
Debian's Chromium. Each context of a browser looks twice: with nothing cached, and with what it has then.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.figure import Figure, table
from gpu_sandbox.airflow_api import wait_until
from gpu_sandbox.airflow_home import AirflowHome
from tests.browser import recorded
from tests.browser.conftest import REPOSITORY, Person, chromium, tab_in
from tests.inherited import INHERITED

DAYS, NIGHTS_A_DAY, LOOKS = 30, 5, 5
_DAG = "recorded"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, _airflow(Path(folder)) as airflow:
        admin = Person(airflow.url, "admin")
        admin.wait_for_dag(_DAG)
        _run_nights(admin)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            print("\n".join(table(_measure(browser, airflow.url))))
            browser.close()


def _airflow(home: Path) -> AirflowHome:
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({"admin": "admin"}))
    env = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG": "16",
    }
    return AirflowHome(home, REPOSITORY / "tests" / "browser" / "dags", env, parallelism=4, inherited=INHERITED)


def _run_nights(admin: Person) -> None:
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    due = [midnight - timedelta(days=day, hours=night) for day in range(DAYS) for night in range(NIGHTS_A_DAY)]
    for number, at in enumerate(due):
        conf = recorded.night("train-gpu", at, recorded.usage(at, computed=0.4))
        body = {"logical_date": None, "run_after": at.isoformat(), "conf": conf, "dag_run_id": f"night-{number}"}
        admin._call("POST", f"/dags/{_DAG}/dagRuns", json=body)

    def ended() -> bool:
        found = admin._call("GET", f"/dags/{_DAG}/dagRuns", params={"state": "success", "limit": 1})
        return bool(found["total_entries"] >= len(due))

    wait_until(ended, timeout=1200, what=f"{len(due)} nights")


def _measure(browser: Browser, url: str) -> list[Figure]:
    ours: dict[bool, list[float]] = {False: [], True: []}
    peers: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(LOOKS):
        for path, ready, looks in (
            ("/plugin/gpu_pools", "[data-night]", ours),
            (f"/dags/{_DAG}", "[data-testid^='grid-'], [id^='grid-'], a[href*='/runs/night-']", peers),
        ):
            context = browser.new_context(viewport={"width": 1000, "height": 900})
            tab = tab_in(context, "admin", url)
            for is_warm in (False, True):
                looks[is_warm].append(_seconds(tab.page, url + path, ready))
            context.close()
    nights = f"{DAYS * NIGHTS_A_DAY} nights of {DAYS} days"
    return [
        Figure(
            name=f"first draw of the page with {nights}, {words}; peer: Airflow's own grid of the DAG",
            unit="s",
            ours=statistics.median(ours[is_warm]),
            peer=statistics.median(peers[is_warm]),
            n=LOOKS,
        )
        for is_warm, words in ((False, "nothing cached"), (True, "looked at again"))
    ]


def _seconds(page: Page, url: str, ready: str) -> float:
    began = time.monotonic()
    page.goto(url)
    page.locator(ready).first.wait_for()
    seconds = time.monotonic() - began
    page.wait_for_load_state("networkidle")
    return seconds


if __name__ == "__main__":
    main()
