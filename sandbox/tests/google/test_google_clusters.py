"""A project's GKE cluster: made and deleted by the API, one at a time."""

from __future__ import annotations

import pytest
from google.api_core.exceptions import BadRequest, NotFound

from sandbox.tests.google.conftest import REAL, Project


def test_there_is_one_control_plane_and_so_one_cluster(project: Project) -> None:
    gke, place = project.gke, project.parent.rpartition("/clusters/")[0]
    first = f"{place}/clusters/first"
    cluster = {"name": "first", "initial_node_count": 1, "locations": ["us-central1-a"]}
    with pytest.raises(BadRequest, match="cluster k8s-ml has it"):
        gke.create_cluster(parent=place, cluster=cluster)
    project.done(gke.delete_cluster(name=project.parent), REAL.cluster_delete)
    assert not gke.list_clusters(parent=place).clusters

    created = gke.create_cluster(parent=place, cluster=cluster)
    with pytest.raises(BadRequest, match="cluster first has it"):
        gke.create_cluster(parent=place, cluster={**cluster, "name": "second"})
    project.done(created, REAL.cluster_create)
    assert gke.get_cluster(name=first).status.name == "RUNNING"
    assert [pool.name for pool in gke.get_cluster(name=first).node_pools] == ["default-pool"]

    deleted = gke.delete_cluster(name=first)
    assert gke.get_cluster(name=first).status.name == "STOPPING"
    project.done(deleted, REAL.cluster_delete)
    assert not gke.list_clusters(parent=place).clusters
    with pytest.raises(NotFound):
        gke.get_cluster(name=first)
