"""Links that the task's page in Airflow's UI shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import Operator


class NodeGroupsLink(BaseOperatorLink):
    """The cloud console's page with the pool's node groups.

    Machines that others bring have none: the address is empty then, and Airflow shows no link.
    """

    name = "Node groups"

    def get_link(self, operator: Operator, *, ti_key: Any) -> str:
        """Return the page of the operator's (rendered) pool; Airflow calls this in the worker when the task ends."""
        url: str = getattr(operator, "gpu_pool").console_url  # noqa: B009 - the link serves every operator with a pool
        return url
