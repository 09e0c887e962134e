"""@task.gpu: a Python function that runs in a pod on a GPU pool."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.decorators.kubernetes import _KubernetesDecoratedOperator
from airflow.sdk.bases.decorator import task_decorator_factory
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.xcom_arg import XComArg

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.pool_operator import current_pool
from airflow_gpu_provider.tasks.roles import without_role
from airflow_gpu_provider.training.place.pod_placement import check_pickled

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator
    from airflow.sdk.types import Operator


_KEYS_OF_ITS_OWN = frozenset(
    {"return_value", "error", "timeline", "utilization", "advice", "pod_name", "pod_namespace"}
)
"""The keys of XComs that a task may have whatever its function returns (docs/xcom.md)."""


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
        """Note, with the whole DAG read, whether a task uses what this one returns; refuse a key that it never has."""
        super().resolve_template_files()
        self._push_what_is_used()
        self._check_used_keys()

    def execute(self, context: Context) -> Any:
        """Run the function; what it returns is pushed where a task uses it."""
        self._push_what_is_used()  # a mapped task's operator is made when it runs
        self._check_used_keys()
        return super().execute(context)

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue as GpuPodOperator does."""
        self._push_what_is_used()
        return super().trigger_reentry(context, event)

    def _push_what_is_used(self) -> None:
        if not self._pushes_what_is_used or self.get_dag() is None:
            return
        if any(self._used_keys()) or any(self.iter_mapped_dependants()):
            self.do_xcom_push = True

    def _used_keys(self) -> Iterator[tuple[str, str]]:
        """Yield each XCom of this task that another is given: the other's id, and the key."""
        if (dag := self.get_dag()) is None:
            return
        for following in sorted(self.downstream_task_ids):
            for key in _keys_of(self.task_id, dag.get_task(following)):
                yield following, key

    def _check_used_keys(self) -> None:
        """Refuse an XCom of a key of its own before anything is trained for it.

        Hooks and callbacks may push what they like.
        """
        if self.multiple_outputs or any((self.callbacks, self._pre_execute_hook, self._post_execute_hook)):
            return
        for following, key in self._used_keys():
            if key not in _KEYS_OF_ITS_OWN:
                raise PoolSpecError(
                    f"Task {following} is given {key!r} of what task {self.task_id} returns, which is one XCom as a"
                    " whole.",
                    f"Annotate the function of {self.task_id} with `-> dict`, or give @task.gpu multiple_outputs=True.",
                    task=self.task_id,
                )

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
        check_pickled(size)


def _keys_of(task_id: str, following: Operator) -> Iterator[str]:
    """Yield the keys of the XComs of the task with this id that another is given."""
    arguments = following.partial_kwargs if isinstance(following, MappedOperator) else vars(following)
    given = [arguments.get(name) for name in (*following.template_fields, "op_args", "op_kwargs")]
    for operator, key in XComArg.iter_xcom_references(given):
        if operator.task_id == task_id:
            yield key


def gpu_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Run the decorated function in a pod on a GPU pool.

        @task.gpu(gpu_pool=train_gpu, gpus=1, image="registry.example.com/train:1")
        def train(rate: float) -> dict: ...

    The function's source and its pickled arguments go into the pod, as with @task.kubernetes: it imports what it needs
    in its own body, and the image has bash and Python of the worker's minor version (3.12, say). Its arguments may have
    96 KiB together, pickled: pass the path or the URL of larger data. What it returns becomes the task's XCom where
    another task is given it, and then has to be JSON. With code="bundle" it may import modules of its DAG's bundle.

    Args:
        python_callable: The function.
        multiple_outputs: Whether a returned dict becomes one XCom for each key, too. Default: True for a function that
            is annotated to return a mapping, as with @task.kubernetes. A key like "timeline" then replaces what this
            package leaves there (docs/xcom.md); False leaves one XCom.
        **kwargs: GpuPodOperator's arguments; gpu_pool is that of the `gpu_nodes` block around the call, unless given.
            do_xcom_push is True by default where a task is given what the function returns, as in `show(train(0.1))`;
            where one reads it with a template or `ti.xcom_pull`, say do_xcom_push=True.

    Raises:
        PoolSpecError: Another task is given a key of the result, as in `show(train()["loss"])`, and that has none; this
            is told when the DAG is parsed, of a mapped task before it makes a pod.
        And what GpuPodOperator raises.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=GpuDecoratedOperator,
        **kwargs,
    )
