"""Machines of GKE's node pools go many at a time: one reading and one deletion for each instance group."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.base import Machine
from airflow_gpu_provider.clouds.google.instance_groups import InstanceGroup
from airflow_gpu_provider.clouds.google.owned_platform import OwnedGkePlatform
from airflow_gpu_provider.errors import CloudError

POOL = GkeGpuPool(
    name="large",
    cluster_name="k8s-ml",
    project_id="my-project",
    location="us-central1",
    machine_types=("g2-standard-4",),
    max_nodes=9,
)


class Groups:
    """Two node pools, each of an instance group in two zones."""

    def __init__(self, refuses: str = "") -> None:
        self._refuses = refuses
        self.read_paths: list[str] = []
        self.removed: dict[str, list[str]] = {}

    def read(self, paths: Sequence[str]) -> list[InstanceGroup]:
        self.read_paths += paths
        return [InstanceGroup(path=path, target=3, managed=_managed(path)) for path in paths]

    def remove(self, path: str, names: Sequence[str]) -> None:
        if path == self._refuses:
            raise CloudError("No.")
        assert path not in self.removed
        self.removed[path] = list(names)


def _managed(path: str) -> tuple[dict[str, str], ...]:
    return tuple({"name": f"{path}-{number}", "instanceStatus": "RUNNING"} for number in range(3))


def platform(groups: Groups) -> OwnedGkePlatform:
    made = OwnedGkePlatform(POOL)
    made._gke.__dict__["groups"] = groups
    made._behind = {name: [f"{name}-a", f"{name}-b"] for name in "xy"}
    return made


def released(groups: Groups, *names: str) -> CloudError | None:
    machines = [Machine(id=name, group=name.split("-")[0], state="running") for name in names]
    try:
        platform(groups).release(machines)
    except CloudError as error:
        return error
    return None


def test_a_group_is_read_once_and_exactly_its_machines_are_deleted_at_once() -> None:
    groups = Groups()
    assert released(groups, "x-a-0", "x-a-2", "x-b-1", "y-b-0", "y-gone-7") is None
    assert groups.removed == {"x-a": ["x-a-0", "x-a-2"], "x-b": ["x-b-1"], "y-b": ["y-b-0"]}
    assert sorted(groups.read_paths) == ["x-a", "x-b", "y-a", "y-b"]


def test_one_group_s_error_does_not_keep_the_others() -> None:
    groups = Groups(refuses="x-a")
    assert released(groups, "x-a-0", "y-a-0") is not None
    assert groups.removed == {"y-a": ["y-a-0"]}
