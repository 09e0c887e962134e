"""Links that the task's page in Airflow's UI shows. Airflow asks for them in the worker, when the task ends."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_gpu_provider.pools.gpu_pool import GpuPool

if TYPE_CHECKING:
    from airflow.sdk.types import Operator, TaskInstanceKey


class RunNodesLink(BaseOperatorLink):
    """The tab GPU nodes of the task's DAG run; empty with `[gpu_provider] ui = False`."""

    name = "GPU nodes"

    def get_link(self, operator: Operator, *, ti_key: TaskInstanceKey) -> str:
        """Return the tab's page below Airflow's `[api] base_url`."""
        from airflow.providers.common.compat.sdk import conf

        if not conf.getboolean("gpu_provider", "ui", fallback=True):
            return ""
        base = conf.get("api", "base_url", fallback="/").rstrip("/")
        dag_id, run_id = (quote(each, safe="") for each in (ti_key.dag_id, ti_key.run_id))
        return f"{base}/dags/{dag_id}/runs/{run_id}/plugin/gpu_nodes"


class NodeGroupsLink(BaseOperatorLink):
    """The cloud console's page with the pool's node groups.

    Machines that others bring have none, nor has a task that failed for want of a pool: the address is empty then, and
    Airflow shows no link.
    """

    name = "Node groups"

    def get_link(self, operator: Operator, *, ti_key: object) -> str:
        """Return the page of the operator's (rendered) pool."""
        pool = getattr(operator, "gpu_pool", None)  # a mapped task that could not be made has none
        return pool.console_url if isinstance(pool, GpuPool) else ""


class KueueQueueLink(BaseOperatorLink):
    """The page of the training's LocalQueue, with its Workloads, in KueueViz; empty without one, or without a queue.

    KueueViz is Kueue's dashboard, which a cluster may have: `[gpu_provider] kueueviz_url`.
    """

    name = "Kueue queue"

    def get_link(self, operator: Operator, *, ti_key: object) -> str:
        """Return the queue's page: /local-queue/:namespace/:queueName of kueue's cmd/kueueviz/frontend."""
        from airflow.providers.common.compat.sdk import conf

        base = conf.get("gpu_provider", "kueueviz_url", fallback="").rstrip("/")
        queue, namespace = (getattr(operator, name, None) for name in ("queue_name", "namespace"))
        if not base or not queue:
            return ""
        return f"{base}/local-queue/{namespace or 'default'}/{queue}"


LINKS = (RunNodesLink(), NodeGroupsLink())
"""Of each task with a pool."""
