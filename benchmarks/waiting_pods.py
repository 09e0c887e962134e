"""What waiting for pods costs, and how soon their end is heard: deferred GpuPodOperators and KubernetesPodOperators.

Both wait for the same number of pods on one sandbox's API server, one after the other, each in a process of its own
(see waiter). Requests are the API server's own count, less what it counts in the same time with nobody waiting.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kubernetes import client

from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from benchmarks.figure import Figure
from benchmarks.played_pods import PlayedPods, State

COUNTS = (1, 10, 100, 1000)
EVENT_AFTER_SECONDS = 15.0
SETTLED_CPU_SECONDS = 0.05
MEASURE_SECONDS = 30.0
HEARD_WITHIN_SECONDS = 180.0
PEER = "KubernetesPodOperator"
LOG = Path("build/bench-triggers.log")
"""What the triggers of both sides log: a thousand waiting peers say much."""

Side = Literal["ours", "peer", "gang"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one side's waiting cost: requests and CPU seconds a minute, MiB, and seconds from each pod's end."""

    requests: float
    cpu: float
    memory: float
    heard_after: list[float]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is waited for: pods, spread over pools, of which the first has nodes."""

    state: State
    pods: int
    pools: int = 1
    nodes: int = 0

    @property
    def words(self) -> str:
        pods = f"{self.pods} {self.state} pod{'s' * (self.pods > 1)}"
        pools = ", each for a pool of its own" if self.pools > 1 else ""
        return pods + pools + (f", {self.nodes} nodes in the pool" if self.nodes else "")


CASES = [
    *(Case(state="pending", pods=count) for count in COUNTS),
    *(Case(state="running", pods=count) for count in COUNTS),
    Case(state="pending", pods=10, pools=10),
    Case(state="pending", pods=10, nodes=100),
]


def measure(api: client.CoreV1Api) -> list[Figure]:
    """Return the figures of every case."""
    figures: list[Figure] = []
    with PlayedPods(api) as played:
        for case in CASES:
            print(f"   {case.words}", flush=True)
            for number in range(case.nodes):
                played.add_node(f"played-{number}", {POOL_LABEL: _pool(0)})
            costs = {side: _cost(api, played, side, case) for side in ("ours", "peer")}
            figures += _figures(case.words, costs["ours"], costs["peer"])
    return figures


def _figures(what: str, ours: Cost, peer: Cost) -> list[Figure]:
    rows = [
        _figure(f"API requests a minute, {what}", "requests/min", ours.requests, peer.requests),
        _figure(f"CPU of the triggerer, {what}", "CPU s/min", ours.cpu, peer.cpu),
        _figure(f"memory of the triggerer, {what}", "MiB", ours.memory, peer.memory),
    ]
    if ours.heard_after and peer.heard_after:
        for percent in (50, 99):
            name = f"pod's end to the trigger's event, p{percent}, {what}"
            ours_at, peer_at = _percentile(ours.heard_after, percent), _percentile(peer.heard_after, percent)
            rows.append(_figure(name, "s", ours_at, peer_at, n=len(ours.heard_after)))
    return rows


def _figure(name: str, unit: str, ours: float, peer: float, n: int = 1) -> Figure:
    return Figure(name=f"{name}; peer: {PEER}", unit=unit, ours=ours, peer=peer, n=n)


def _percentile(values: Sequence[float], percent: int) -> float:
    return values[0] if len(values) == 1 else statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _pool(number: int) -> str:
    return f"bench-{number}"


def _cost(api: client.CoreV1Api, played: PlayedPods, side: Side, case: Case) -> Cost:
    pods: list[dict[str, str]] = []
    for number in range(case.pools):
        labels, prefix = {POOL_LABEL: _pool(number)}, f"{side}-{case.state}-{number}"
        made = played.create(case.pods // case.pools, case.state, prefix=prefix, labels=labels)
        pods += [{**pod, "pool": _pool(number)} for pod in made]
    try:
        idle = requests_in(api, MEASURE_SECONDS)
        with Waiter(side, pods) as waiter:
            waiter.wait_settled()
            before, requests = waiter.sample(), requests_in(api, MEASURE_SECONDS)
            after = waiter.sample()
            ended = played.end(pods) if case.state == "running" else {}
            heard = waiter.wait_heard(ended)
    finally:
        played.delete()
    if after["ended"]:
        raise RuntimeError(f"{after['ended']} of {case.pods} waits ended before their pods did: {waiter.told[:3]}")
    minutes = MEASURE_SECONDS / 60
    return Cost(
        requests=max(0.0, requests - idle) / minutes,
        cpu=(after["cpu"] - before["cpu"]) / minutes,
        memory=after["rss"],
        heard_after=sorted(heard[name] - at for name, at in ended.items()),
    )


def requests_in(api: client.CoreV1Api, seconds: float) -> int:
    """Count the API server's requests that waiting can make, in the next `seconds`."""
    before = _requests(api)
    time.sleep(seconds)
    return _requests(api) - before


def _requests(api: client.CoreV1Api) -> int:
    """Count what the API server was asked so far; POST and PATCH are the benchmark's and the scheduler's."""
    pool, host = api.api_client.rest_client.pool_manager, api.api_client.configuration.host
    text = pool.request("GET", f"{host}/metrics").data.decode()
    rows = re.findall(r'^apiserver_request_total\{.*verb="(GET|LIST|WATCH|PUT)".*\} (\S+)$', text, re.M)
    return int(sum(float(count) for _, count in rows))


@dataclass
class Waiter:
    """The process of one side, and what it has told."""

    side: Side
    pods: list[dict[str, str]]
    told: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> Waiter:
        command = [sys.executable, "-m", "benchmarks.waiter", self.side]
        LOG.parent.mkdir(exist_ok=True)
        with LOG.open("a") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._news = threading.Condition()
        threading.Thread(target=self._listen, name="waiter", daemon=True).start()
        self._ask(json.dumps(self.pods))
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_settled(self) -> None:
        """Return when imports and the first look at each pod are over: CPU time does not fall any more."""
        costs, last = [float("inf")], self.sample()["cpu"]
        while True:
            time.sleep(EVENT_AFTER_SECONDS)
            now = self.sample()["cpu"]
            costs.append(now - last)
            if costs[-1] > 0.7 * costs[-2] or costs[-1] < SETTLED_CPU_SECONDS:
                return
            last = now

    def sample(self) -> dict[str, Any]:
        asked = sum("cpu" in line for line in self.told)
        self._ask("sample")
        with self._news:
            self._news.wait_for(lambda: sum("cpu" in line for line in self.told) > asked, timeout=120)
        samples = [line for line in self.told if "cpu" in line]
        if len(samples) <= asked:
            raise RuntimeError(f"{self.side}: no answer in two minutes; exit status {self._process.poll()}; see {LOG}")
        return samples[-1]

    def wait_heard(self, names: dict[str, float]) -> dict[str, float]:
        """Return when each of these pods' triggers had its event."""

        def heard() -> dict[str, float]:
            return {line["event"]: line["at"] for line in self.told if line.get("event") in names}

        with self._news:
            self._news.wait_for(lambda: len(heard()) == len(names), timeout=HEARD_WITHIN_SECONDS)
        if missing := names.keys() - heard().keys():
            raise RuntimeError(f"{self.side}: {len(missing)} ends were not heard of in {HEARD_WITHIN_SECONDS:.0f} s")
        return heard()

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.told.append(json.loads(line))
                self._news.notify_all()
