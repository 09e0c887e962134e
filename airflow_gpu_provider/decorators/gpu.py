"""@task.gpu: a Python function that runs in a pod on a GPU pool."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.decorators.kubernetes import _KubernetesDecoratedOperator
from airflow.sdk.bases.decorator import task_decorator_factory
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.xcom_arg import XComArg

from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.pool_operator import current_pool
from airflow_gpu_provider.tasks.roles import without_role
from airflow_gpu_provider.training.place.pod_placement import check_pickled

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator
    from airflow.sdk.types import Operator


class GpuDecoratedOperator(_KubernetesDecoratedOperator, GpuPodOperator):
    """A function packed as @task.kubernetes packs it, in a pod that is GpuPodOperator's."""

    custom_operator_name = "@task.gpu"

    # Sorted: KubernetesPodOperator's decorator keeps a set's order, which differs from process to process.
    template_fields: Sequence[str] = tuple(
        sorted({*_KubernetesDecoratedOperator.template_fields, *GpuPodOperator.template_fields})
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        random_name_suffix: bool = True,
        do_xcom_push: bool | None = None,
        **kwargs: Any,
    ) -> None:
        name = name or kwargs["python_callable"].__name__.strip("_").replace("_", "-")
        pushes = bool(do_xcom_push)
        super().__init__(name=name, random_name_suffix=random_name_suffix, do_xcom_push=pushes, **kwargs)
        self._pushes_what_is_used = do_xcom_push is None
        if current_pool() is not None:
            self._check_arguments()

    def get_python_source(self) -> str:
        """Return the function's source without its decorator, which Airflow knows by the operator's name."""
        self.custom_operator_name = without_role(type(self).custom_operator_name)
        source: str = super().get_python_source()  # type: ignore[no-untyped-call]
        return source

    def resolve_template_files(self) -> None:
        """Note, with the whole DAG read, whether a task uses what this one returns."""
        super().resolve_template_files()
        self._push_what_is_used()

    def execute(self, context: Context) -> Any:
        """Run the function; what it returns is pushed where a task uses it."""
        self._push_what_is_used()  # a mapped task's operator is made when it runs
        return super().execute(context)

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue as GpuPodOperator does."""
        self._push_what_is_used()
        return super().trigger_reentry(context, event)

    def _push_what_is_used(self) -> None:
        dag = self.get_dag()
        if not self._pushes_what_is_used or dag is None:
            return
        following = (dag.get_task(task_id) for task_id in self.downstream_task_ids)
        if any(_uses(each, self.task_id) for each in following) or any(self.iter_mapped_dependants()):
            self.do_xcom_push = True

    def _asked(self) -> Mapping[str, object]:
        try:
            source: str | None = inspect.getsource(self.python_callable)
        except (OSError, TypeError):
            source = None  # it will be refused when the task runs
        return {**super()._asked(), "source": source, "op_args": self.op_args, "op_kwargs": self.op_kwargs}

    def _check_arguments(self) -> None:
        """Check, when the DAG is parsed, the size of arguments that are known then.

        A block's nodes come before the task runs. Without a block they come for the pod, which is refused first.
        """
        given = {"args": self.op_args, "kwargs": self.op_kwargs}
        if is_template(given) or any(True for _ in XComArg.iter_xcom_references(given)):
            return
        try:
            size = len(pickle.dumps(given))
        except Exception:  # noqa: BLE001 - what only dill can pickle is known when the task runs
            return
        check_pickled(size, self.task_id)


def _uses(task: Operator, task_id: str) -> bool:
    """Return True if the task is given what the task with this id returns."""
    arguments = task.partial_kwargs if isinstance(task, MappedOperator) else vars(task)
    given = [arguments.get(name) for name in (*task.template_fields, "op_args", "op_kwargs")]
    return any(operator.task_id == task_id for operator, _ in XComArg.iter_xcom_references(given))


def gpu_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool = False, **kwargs: Any
) -> TaskDecorator:
    """Run the decorated function in a pod on a GPU pool.

        @task.gpu(gpu_pool=train_gpu, gpus=1, image="registry.example.com/train:1")
        def train(rate: float) -> dict: ...

    The function's source and its pickled arguments go into the pod, as with @task.kubernetes: it imports what it needs
    in its own body, and the image has bash and Python of the worker's minor version (3.12, say). Its arguments may have
    96 KiB together, pickled: pass the path or the URL of larger data. What it returns becomes the task's XCom where
    another task is given it, and then has to be JSON.

    Args:
        python_callable: The function.
        multiple_outputs: Whether a returned dict becomes one XCom for each key. Default False, whatever the function's
            annotation: a key like "error" or "timeline" would replace what this package leaves (docs/xcom.md).
        **kwargs: GpuPodOperator's arguments; gpu_pool is that of the `gpu_nodes` block around the call, unless given.
            do_xcom_push is True by default where a task is given what the function returns, as in `show(train(0.1))`;
            where one reads it with a template or `ti.xcom_pull`, say do_xcom_push=True.

    Raises:
        What GpuPodOperator raises.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=GpuDecoratedOperator,
        **kwargs,
    )
