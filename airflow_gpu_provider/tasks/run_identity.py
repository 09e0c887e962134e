"""Who wants the nodes, and for how long at most: the DAG run, and the Airflow installation that it belongs to.

Two installations may run the same DAG against one cluster, with equal DAG and run ids. Each therefore has an
id of its own: the option `[gpu_provider] installation_id`, or else an Airflow Variable that the first task
to ask creates and everybody after it reads.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import Report
    from airflow_gpu_provider.cluster.api.clock import Clock
    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.pools.demand_key import DemandKey
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler

INSTALLATION_VARIABLE = "gpu_provider_installation_id"
_PROPOSED = f"{INSTALLATION_VARIABLE}_proposed"
_PROPOSALS_WRITTEN_IN = 1.0


def installation_id() -> str:
    """Return this installation's id; call it where Airflow's task API is at hand (a worker), not in a trigger."""
    return _configured() or _stored(INSTALLATION_VARIABLE) or _agreed()


def known_installation_id() -> str:
    """Return this installation's id where it has one by now, else nothing; for who must not write a Variable."""
    from airflow.sdk import Variable

    return _configured() or str(Variable.get(INSTALLATION_VARIABLE, default=None) or "")


def _configured() -> str | None:
    from airflow.providers.common.compat.sdk import conf

    found: str | None = conf.get("gpu_provider", "installation_id", fallback=None)
    return found


def run_is_over(context: Any, key: DemandKey) -> bool:
    """Ask Airflow, from a task, whether a DAG run of this installation has ended, or is not there any more."""
    living = context["ti"].get_dr_count(dag_id=key.dag_id, run_ids=[key.run_id], states=["queued", "running"])
    return int(living) == 0


def _stored(name: str) -> str | None:
    """Return a Variable's value; None only where it is certain that there is none.

    `Variable.get` says so too when Airflow's API did not answer, and a second id would make strangers of all runs that
    want nodes now: their scale-down would not release those nodes.
    """
    from airflow.sdk import Variable

    value: str | None = Variable.get(name, default=None)
    if not value and name in list(Variable.keys(prefix=name)):
        return str(Variable.get(name))
    return value


def _agreed() -> str:
    """Make an id, unless another worker makes one at the same time: then return that one.

    Variables have no compare-and-swap. So each worker proposes an id, waits until the proposals of all who saw none are
    through, and takes the last one. A process whose write was delayed longer still finds what the others have taken.
    """
    from airflow.sdk import Variable

    if not _stored(_PROPOSED):
        Variable.set(_PROPOSED, uuid.uuid4().hex[:12], description="Not in use: see gpu_provider_installation_id.")
    time.sleep(_PROPOSALS_WRITTEN_IN)
    proposed = str(Variable.get(_PROPOSED))
    if not _stored(INSTALLATION_VARIABLE):
        what = "Tells the GPU nodes that this Airflow wants from those that another one wants. Do not change."
        Variable.set(INSTALLATION_VARIABLE, proposed, description=what)
        time.sleep(_PROPOSALS_WRITTEN_IN)
    return str(Variable.get(INSTALLATION_VARIABLE))


def run_key(context: Any, pool_name: str, block_id: str = "") -> DemandKey:
    """Return the key of the demand that a block of the current DAG run has for `pool_name`."""
    from airflow_gpu_provider.pools.demand_key import DemandKey

    ti = context["ti"]
    return DemandKey(installation=installation_id(), dag_id=ti.dag_id, run_id=ti.run_id, pool=pool_name, block=block_id)


def run_ends_by(context: Any) -> datetime | None:
    """Return when dagrun_timeout has ended the current run, whatever it does then; None where the DAG has none."""
    from airflow_gpu_provider.scaling import deadlines

    dag, dag_run = context.get("dag"), context.get("dag_run")
    timeout = getattr(dag, "dagrun_timeout", None)
    started = getattr(dag_run, "start_date", None)
    return deadlines.run_ends_by(started, timeout) if timeout and started else None


def run_ends_at(context: Any, clock: Clock) -> datetime | None:
    """Return the same by another clock, such as the cluster's."""
    ends_by = run_ends_by(context)
    return None if ends_by is None else clock.of_local(ends_by)


def pool_opener(context: Any, report: Report) -> Callable[[GpuPool], Reconciler]:
    """Return what connects to pools in the task's name: as the writer of their groups, and a holder of their locks."""
    from airflow_gpu_provider.scaling.apply.reconcile import open_pool

    return partial(open_pool, owner=group_writer(context), holder=lock_holder(context), report=report)


def group_writer(context: Any) -> str:
    """Return who writes the spec of owned groups: "<installation>/<dag id>"."""
    return f"{installation_id()}/{context['ti'].dag_id}"


def lock_holder(context: Any) -> str:
    """Return a name for the pool's lock that tells a person which task has it."""
    ti = context["ti"]
    mapped = f"[{ti.map_index}]" if ti.map_index is not None and ti.map_index >= 0 else ""
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}{mapped}#{ti.try_number}@{socket.gethostname()}:{os.getpid()}"
