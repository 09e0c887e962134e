"""What of a node pool is read from GKE's answers."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.clouds.google.node_pools import group_paths

BLUE, GREEN = (
    [f"projects/p/zones/{zone}/instanceGroupManagers/{side}" for zone in ("a", "b")] for side in ("blue", "green")
)


def urls(paths: list[str]) -> list[str]:
    return [f"https://www.googleapis.com/compute/v1/{path}" for path in paths]


def test_without_an_upgrade_groups_are_in_gkes_order() -> None:
    assert group_paths({}) == []
    assert group_paths({"instance_group_urls": urls(BLUE), "update_info": None}) == BLUE


@pytest.mark.parametrize(
    ("phase", "stays"),
    [
        ("UPDATE_STARTED", BLUE),
        ("CREATING_GREEN_POOL", BLUE),
        ("CORDONING_BLUE_POOL", GREEN),
        ("DRAINING_BLUE_POOL", GREEN),
        ("NODE_POOL_SOAKING", GREEN),
        ("DELETING_BLUE_POOL", GREEN),
        ("ROLLBACK_STARTED", BLUE),
    ],
)
def test_the_side_of_a_blue_green_upgrade_that_stays_comes_first(phase: str, stays: list[str]) -> None:
    upgrade = {
        "phase": phase,
        "blue_instance_group_urls": urls(BLUE),
        "green_instance_group_urls": urls(GREEN),
    }
    node_pool = {"instance_group_urls": urls([*BLUE, *GREEN]), "update_info": {"blue_green_info": upgrade}}
    leaves = BLUE if stays is GREEN else GREEN
    assert group_paths(node_pool) == [*stays, *leaves]
