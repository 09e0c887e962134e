"""The shared list: pods that live and end in every way that matters, told alike by a process node and a kubelet.

What a real kubelet shows of them is kept in `as_a_kubelet_shows.json`, which `sandbox/tests/kubelet` compares with a
kubelet, and `sandbox/tests` with a process node. `RECORD_KUBELET=1 make test-kubelet` writes it anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config

from sandbox.tests.node_checks.story import Story, tell

RECORD = Path(__file__).parent / "as_a_kubelet_shows.json"
IMAGE = "busybox:1.36"

_AT_ONCE = 16
_POLITE = "trap 'echo bye; exit 0' TERM; while :; do sleep 0.2; done"
_POLITE_ONCE_UP = _POLITE.replace("while", "echo up; while")
_STUBBORN = "trap '' TERM; while :; do sleep 0.2; done"
_FAILS = {"exec": {"command": ["false"]}, "timeoutSeconds": 60}
_FAILS_ONCE = "test -e /tmp/asked || { touch /tmp/asked; exit 1; }"

Until = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True, kw_only=True)
class Told:
    """A pod, what is done to it, and when enough of it was seen."""

    spec: Mapping[str, Any]
    until: Until
    act: Callable[[client.CoreV1Api, str], None] | None = None


def sh(script: str, name: str = "main", **container: Any) -> dict[str, Any]:
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", script], **container}


def unknown_image(name: str = "main", **container: Any) -> dict[str, Any]:
    return {"name": name, "image": "nowhere.example/train:1", **container}


def ended(status: dict[str, Any]) -> bool:
    """It has ended, and the kubelet has said all of it: that its sandbox is gone comes last."""
    conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
    return status["phase"] in ("Succeeded", "Failed") and conditions.get("PodReadyToStartContainers") != "True"


def ready(status: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))


def waits_for(reason: str) -> Until:
    return lambda status: any(
        one["state"].get("waiting", {}).get("reason") == reason for one in status.get("containerStatuses", ())
    )


def is_deleted(status: dict[str, Any]) -> bool:
    """Never by its status: the object's end is the end."""
    return False


def deletes(*, says: str = "", **options: Any) -> Callable[[client.CoreV1Api, str], None]:
    """Delete the pod once it runs, and has said this."""

    def act(core: client.CoreV1Api, name: str) -> None:
        deadline = time.monotonic() + 240
        while core.read_namespaced_pod(name, "default").status.phase != "Running" and time.monotonic() < deadline:
            time.sleep(0.1)
        while says and says not in core.read_namespaced_pod_log(name, "default") and time.monotonic() < deadline:
            time.sleep(0.1)
        core.delete_namespaced_pod(name, "default", **options)

    return act


def given_deadline(core: client.CoreV1Api, name: str) -> None:
    """Have the kubelet end the pod that runs, 20 seconds after its start."""
    deadline = time.monotonic() + 240
    while core.read_namespaced_pod(name, "default").status.phase != "Running" and time.monotonic() < deadline:
        time.sleep(0.1)
    core.patch_namespaced_pod(name, "default", {"spec": {"activeDeadlineSeconds": 20}})


def one(container: dict[str, Any], **pod: Any) -> dict[str, Any]:
    return {"containers": [container], **pod}


STORIES: dict[str, Told] = {
    # Ends
    "it succeeds": Told(spec=one(sh("echo hello; sleep 2")), until=ended),
    "it fails": Told(spec=one(sh("echo oops >&2; sleep 2; exit 3")), until=ended),
    "it is killed by a signal": Told(spec=one(sh("sleep 2; kill -TERM 1; exit 8")), until=ended),
    "it leaves a message": Told(spec=one(sh("sleep 2; echo last words > /dev/termination-log; exit 4")), until=ended),
    "its log is its message": Told(
        spec=one(sh("sleep 2; echo last words; exit 4", terminationMessagePolicy="FallbackToLogsOnError")),
        until=ended,
    ),
    "it uses too much memory": Told(
        spec=one(
            sh(
                "sleep 2; exec dd if=/dev/zero of=/dev/null bs=400M count=1000",
                resources={"limits": {"memory": "64Mi"}},
            )
        ),
        until=ended,
    ),
    "it is over its deadline": Told(
        spec=one(sh("sleep 600"), activeDeadlineSeconds=30, terminationGracePeriodSeconds=1), until=ended
    ),
    # As this package ends a training in its worker's or trigger's stead: SIGTERM, and the grace period.
    "it is given a deadline while it runs": Told(spec=one(sh(_POLITE)), until=ended, act=given_deadline),
    "it gets GPUs": Told(
        spec=one(
            sh("echo $CUDA_VISIBLE_DEVICES | tr , ' ' | wc -w; sleep 2", resources={"limits": {"nvidia.com/gpu": "2"}})
        ),
        until=ended,
    ),
    "it looks around": Told(
        spec=one(
            sh(
                "echo $A; hostname; cat /d/name; echo; ls -d /v; pwd; cat /d/labels; sleep 2",
                env=[{"name": "A", "value": "b"}],
                volumeMounts=[{"name": "v", "mountPath": "/v"}, {"name": "d", "mountPath": "/d"}],
                workingDir="/tmp",
            ),
            volumes=[
                {"name": "v", "emptyDir": {}},
                {
                    "name": "d",
                    "downwardAPI": {
                        "items": [
                            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
                            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                        ]
                    },
                },
            ],
            hostname="looker",
        ),
        until=ended,
    ),
    "it reads its names": Told(
        spec=one(
            sh(
                'hostname; sed "s/^$IP\\t/<ip>\\t/" /etc/hosts; echo $HOSTNAME; sleep 2',
                env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            ),
            hostname="train-0",
            subdomain="train",
            setHostnameAsFQDN=True,
            hostAliases=[{"ip": "127.9.9.9", "hostnames": ["mlflow", "mlflow.lab"]}],
        ),
        until=ended,
    ),
    # Several containers
    "its init containers run first": Told(
        spec=one(sh("echo main; sleep 2"), initContainers=[sh("echo 1; sleep 2", "one"), sh("echo 2; sleep 2", "two")]),
        until=ended,
    ),
    "its init container fails": Told(
        spec=one(sh("true"), initContainers=[sh("sleep 2; exit 5", "one"), sh("true", "two")]), until=ended
    ),
    "it has a sidecar": Told(
        spec=one(sh("echo main; sleep 10"), initContainers=[sh(_POLITE, "side", restartPolicy="Always")]), until=ended
    ),
    "one of two ends first": Told(
        spec={"containers": [sh("sleep 2", "first"), sh("sleep 5; exit 2", "second")]}, until=ended
    ),
    # Does not start
    "its image is nowhere": Told(spec=one(unknown_image()), until=waits_for("ImagePullBackOff")),
    "its image is never pulled": Told(
        spec=one(unknown_image(imagePullPolicy="Never")), until=waits_for("ErrImageNeverPull")
    ),
    "its image is no name": Told(
        spec=one({"name": "main", "image": "Not A Name"}), until=waits_for("InvalidImageName")
    ),
    "its program is not there": Told(spec=one({"name": "main", "image": IMAGE, "command": ["/no/such"]}), until=ended),
    "its ConfigMap is missing": Told(
        spec=one(sh("true", env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "missing", "key": "a"}}}])),
        until=waits_for("CreateContainerConfigError"),
    ),
    # Restarts, probes and hooks
    "it is restarted": Told(
        spec=one(
            sh(
                "sleep 1; test -e /v/again || { touch /v/again; exit 1; }; sleep 1",
                volumeMounts=[{"name": "v", "mountPath": "/v"}],
            ),
            restartPolicy="OnFailure",
            volumes=[{"name": "v", "emptyDir": {}}],
        ),
        until=ended,
    ),
    "it crashes again and again": Told(
        spec=one(sh("sleep 1; exit 1"), restartPolicy="OnFailure"), until=waits_for("CrashLoopBackOff")
    ),
    "it becomes ready": Told(
        spec=one(
            sh(
                "sleep 600",
                readinessProbe={
                    "exec": {"command": ["sh", "-c", _FAILS_ONCE]},
                    "periodSeconds": 1,
                    "timeoutSeconds": 60,
                },
            )
        ),
        until=ready,
    ),
    "it is not alive": Told(
        spec=one(
            sh("sleep 60", livenessProbe={**_FAILS, "periodSeconds": 1, "failureThreshold": 2}),
            terminationGracePeriodSeconds=1,
        ),
        until=ended,
    ),
    "one of two is not alive": Told(
        spec={
            "containers": [
                sh("sleep 60", "dead", livenessProbe={**_FAILS, "periodSeconds": 1, "failureThreshold": 2}),
                sh("sleep 24", "well"),
            ],
            "terminationGracePeriodSeconds": 1,
        },
        until=ended,
    ),
    "it never starts up": Told(
        spec=one(
            sh("sleep 60", startupProbe={**_FAILS, "periodSeconds": 1, "failureThreshold": 2}),
            restartPolicy="OnFailure",
            terminationGracePeriodSeconds=1,
        ),
        until=waits_for("CrashLoopBackOff"),
    ),
    "its start hook fails": Told(
        spec=one(
            sh("sleep 60", lifecycle={"postStart": {"exec": {"command": ["sh", "-c", "sleep 1; exit 1"]}}}),
            terminationGracePeriodSeconds=1,
        ),
        until=ended,
    ),
    # Deletion
    "it ends politely when deleted": Told(
        spec=one(sh(_POLITE_ONCE_UP)), act=deletes(says="up", grace_period_seconds=20), until=is_deleted
    ),
    "it ends by force when deleted": Told(
        spec=one(sh(_STUBBORN)), act=deletes(grace_period_seconds=3), until=is_deleted
    ),
    "it has its own grace period": Told(
        spec=one(sh(_STUBBORN), terminationGracePeriodSeconds=2), act=deletes(), until=is_deleted
    ),
    "it has a stop hook": Told(
        spec=one(
            sh("sleep 60", lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "echo stop > /proc/1/fd/1"]}}}),
            terminationGracePeriodSeconds=10,
        ),
        act=deletes(),
        until=is_deleted,
    ),
}


def tell_all(kubeconfig: Path, node: str) -> dict[str, dict[str, Any]]:
    """Run all stories on a node, many at once; return what was seen of each, or what went wrong, as plain data."""
    _pull_image(kubeconfig, node)
    recorded = expected() if RECORD.exists() else {}

    def told(title: str) -> dict[str, Any]:
        core = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        story = STORIES[title]
        name = f"{title.replace(' ', '-').lower()}-{node}"
        try:
            events = len(recorded.get(title, {}).get("events", ()))
            return asdict(tell(core, node, name, story.spec, story.act, until=story.until, events=events))
        except AssertionError as error:
            return {"phases": [], "states": {}, "error": str(error)}

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(STORIES, pool.map(told, STORIES), strict=True))


def expected() -> dict[str, dict[str, Any]]:
    recorded: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return recorded


def record(stories: Mapping[str, dict[str, Any]]) -> None:
    """Write what a kubelet showed, and keep the short-lived states that it showed when it was recorded before."""
    before = expected() if RECORD.exists() else {}
    longest = {}
    for title, seen in stories.items():
        shown = before.get(title, seen)
        longest[title] = alike(seen, shown) if alike(seen, shown) == shown else seen
    RECORD.write_text(json.dumps(longest, indent=1, sort_keys=True) + "\n")


def alike(seen: dict[str, Any], shown: dict[str, Any]) -> dict[str, Any]:
    """What was seen, with the phases and states shown that it lacks: any but the last may be too short to be seen.

    A kubelet looks at its containers once a second. One that is not shown is never let pass.
    """
    states = {name: _filled(states, shown["states"].get(name, [])) for name, states in seen["states"].items()}
    return {**seen, "phases": _filled(seen["phases"], shown["phases"]), "states": states}


def _filled(seen: list[str], shown: list[str]) -> list[str]:
    left = iter(shown)
    is_part = all(state in left for state in seen)
    return shown if is_part and seen[-1:] == shown[-1:] else seen


def _pull_image(kubeconfig: Path, node: str) -> None:
    """So that no story depends on which of them pulls it."""
    core = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
    pulled: Story = tell(core, node, f"pulls-{node}", one(sh("true")), until=ended)
    assert pulled.status["phase"] == "Succeeded", pulled
