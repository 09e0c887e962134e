"""Node pools through google-cloud-container's own client: their life, their sizes, what GKE refuses."""

from __future__ import annotations

from google.cloud.container_v1 import NodePool, Operation

from tests.sandbox.google.conftest import Project, eventually


def test_a_pool_from_nothing_to_one_node_and_gone(project: Project) -> None:
    created = project.create("gpu", wait=False)
    assert created.operation_type == Operation.Type.CREATE_NODE_POOL
    assert created.status == Operation.Status.PENDING
    assert project.pool().status == NodePool.Status.PROVISIONING
    assert not project.done(created).error.code
    assert project.pool().status == NodePool.Status.RUNNING
    assert project.events.seen == []

    assert not project.resize(1).error.code
    assert len(project.events.names("launched")) == 1

    project.done(project.gke.delete_node_pool(name=project.pool_name()))
    assert project.gke.list_node_pools(parent=project.parent).node_pools == []
    assert eventually(lambda: project.events.names("terminated")) == project.events.names("launched")
