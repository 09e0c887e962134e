"""@task.gpu: a Python function that runs in a pod on a GPU pool."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.decorators.kubernetes import _KubernetesDecoratedOperator
from airflow.sdk.bases.decorator import task_decorator_factory
from airflow.sdk.definitions.xcom_arg import XComArg

from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.pool_operator import current_pool
from airflow_gpu_provider.tasks.roles import without_role
from airflow_gpu_provider.training.place.pod_placement import check_pickled

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import TaskDecorator


class GpuDecoratedOperator(_KubernetesDecoratedOperator, GpuPodOperator):
    """A function packed as @task.kubernetes packs it, in a pod that is GpuPodOperator's."""

    custom_operator_name = "@task.gpu"

    # Sorted: KubernetesPodOperator's decorator keeps a set's order, which differs from process to process.
    template_fields: Sequence[str] = tuple(
        sorted({*_KubernetesDecoratedOperator.template_fields, *GpuPodOperator.template_fields})
    )

    def __init__(self, *, name: str | None = None, random_name_suffix: bool = True, **kwargs: Any) -> None:
        name = name or kwargs["python_callable"].__name__.strip("_").replace("_", "-")
        super().__init__(name=name, random_name_suffix=random_name_suffix, **kwargs)
        if current_pool() is not None:
            self._check_arguments()

    def get_python_source(self) -> str:
        """Return the function's source without its decorator, which Airflow knows by the operator's name."""
        self.custom_operator_name = without_role(type(self).custom_operator_name)
        source: str = super().get_python_source()  # type: ignore[no-untyped-call]
        return source

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


def gpu_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool = False, **kwargs: Any
) -> TaskDecorator:
    """Run the decorated function in a pod on a GPU pool.

        @task.gpu(gpu_pool=train_gpu, gpus=1, image="registry.example.com/train:1", do_xcom_push=True)
        def train(rate: float) -> dict: ...

    The function's source and its pickled arguments go into the pod, as with @task.kubernetes: it imports what it needs
    in its own body, and the image has bash and Python of the worker's minor version (3.12, say). Its arguments may have
    96 KiB together, pickled: pass the path or the URL of larger data. What it returns becomes the task's XCom with
    do_xcom_push=True, and has to be JSON.

    Args:
        python_callable: The function.
        multiple_outputs: Whether a returned dict becomes one XCom for each key. Default False, whatever the function's
            annotation: a key like "error" or "timeline" would replace what this package leaves (docs/xcom.md).
        **kwargs: GpuPodOperator's arguments; gpu_pool is that of the `gpu_nodes` block around the call, unless given.

    Raises:
        What GpuPodOperator raises.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=GpuDecoratedOperator,
        **kwargs,
    )
