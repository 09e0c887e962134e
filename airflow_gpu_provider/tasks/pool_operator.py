"""PoolOperator: what the package's operators do with Airflow's own arguments; and which `gpu_nodes` blocks are open.

Airflow gives the values of default_args to the *named* parameters of each class's `__init__`, on the way up: a default
that an operator sets in its **kwargs would win over them. So what has a default of its own here is a named parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property, wraps
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from airflow.sdk import BaseOperator
from airflow.sdk.bases.operator import BaseOperatorMeta
from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout

from airflow_gpu_provider.errors import GpuError, PoolSpecError, TaskKilled, error_types
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.loops import check_loops
from airflow_gpu_provider.tasks.roles import Role, name_with_role
from airflow_gpu_provider.untrusted import storable

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial
    from airflow.sdk.definitions.retry_policy import RetryPolicy
    from airflow.triggers.base import BaseTrigger

    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
    from airflow_gpu_provider.scaling.wait.stopping import Stop
    from airflow_gpu_provider.tasks.telemetry import Lineage


ERROR = "error"
"""XCom key of the error that ended a task's last try."""

_MADE_WITH = frozenset({"self", "kwargs", "task_id", "dag", "task_group", "params", "default_args"})


_PERMANENT: list[type[BaseException] | str] = [cls for cls in error_types() if not cls.retryable]

DEFAULT_RETRY_POLICY = ExceptionRetryPolicy(
    rules=[RetryRule(exception=_PERMANENT, action=RetryAction.FAIL, reason="another try cannot help")]
)
"""Fails at once on errors that another try cannot help, which is part of their types (`retryable`).

The operators hand it to Airflow as their default `retry_policy`. A task with a retry_policy of its own keeps that.
"""


class NamesItsTask(BaseOperatorMeta):
    """Puts the task, and its DAG, before each error of this package that its construction raises.

    Of an error Airflow shows the last two frames: the DAG file's own line, and this one.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        operator: Any = cls.__new__(cls, *args, **kwargs)  # type: ignore[no-untyped-call, arg-type]
        try:
            operator.__init__(*args, **kwargs)
        except GpuError as error:
            made = vars(operator)
            dag = made.get("_dag") or kwargs.get("dag")
            raise of_task(error, made.get("task_id") or kwargs.get("task_id"), dag) from error.__cause__
        return operator


def of_task(error: GpuError, task_id: str | None, dag: DAG | None) -> GpuError:
    """Return an error as that of a task, which it names; one that names a task already stays."""
    if task_id is None or "task" in error.details:
        return error
    who = f"Task {task_id} of DAG {dag.dag_id}" if dag is not None else f"Task {task_id}"
    return type(error)(f"{who}: {error.what}", error.fix, **{**error.details, "task": task_id})


class PoolOperator(BaseOperator, metaclass=NamesItsTask):
    """Base of the package's operators.

    Args:
        retry_policy: Default: fail at once on errors that another try cannot help. One of your own replaces it, None
            too.
        pool: Airflow's slot pool.

    Raises:
        PoolSpecError: `pool` is a GPU pool.
    """

    gpu_role: ClassVar[Role] = ""
    """Its role in this package; its subclasses inherit it."""
    custom_operator_name: str
    """The name that Airflow shows, with the role: of each subclass, whichever it gives itself (`name_with_role`)."""

    _keywords: frozenset[str] = frozenset()
    _is_ending = False
    _is_resumed = False
    """Whether `execute` is called once more in one try, which has done before what it can."""
    _lineage: Callable[[], Lineage] | None = None
    """What its nodes were and cost, once that is known; also for a task that fails."""
    _doing: ClassVar[str] = "ran"
    _after_kill: ClassVar[str] = "Run the task again."

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Here, and not in __init__, it is known what was given by keyword and what comes from default_args.
        self = super().__new__(cls)
        object.__setattr__(self, "_keywords", frozenset(kwargs))
        return self

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        known: frozenset[str] = super().get_serialized_fields()  # type: ignore[no-untyped-call]
        return known | {"gpu_role"}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.custom_operator_name = name_with_role(cls)
        if "execute" in vars(cls):
            setattr(cls, "execute", _leaving_its_error(vars(cls)["execute"]))  # noqa: B010 - mypy takes no assignment

    def __init__(
        self, *, retry_policy: RetryPolicy | None = DEFAULT_RETRY_POLICY, pool: str | None = None, **kwargs: Any
    ) -> None:
        slots = None if isinstance(pool, GpuPool) else pool  # the error names the task, which is known after this
        super().__init__(retry_policy=retry_policy, pool=slots, **kwargs)
        _refuse_gpu_pool(pool)

    @cached_property
    def _stop(self) -> Stop:
        from airflow_gpu_provider.scaling.wait.stopping import Stop

        return Stop()

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Do as Airflow does, with our own defaults, which Airflow before 3.3.2 replaces by BaseOperator's."""
        made = super().partial(**kwargs)
        parents = (made.kwargs["dag"], made.kwargs["task_group"])
        default_args = {k: v for each in parents if each is not None for k, v in (each.default_args or {}).items()}
        default_args |= kwargs.get("default_args") or {}
        given = {**default_args, **kwargs}
        own = {name: value for name, value in argument_defaults(cls, with_base=False).items() if name not in given}
        made.kwargs |= {name: value for name, value in own.items() if name in made.kwargs}
        try:
            cls._check_partial(made, kwargs, default_args)
        except GpuError as error:
            raise of_task(error, made.kwargs["task_id"], made.kwargs["dag"]) from error.__cause__
        return made

    @classmethod
    def _check_partial(cls, made: OperatorPartial, kwargs: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
        """Refuse now what would otherwise be refused when each of the mapped tasks is made.

        `made` is what `partial` returns, `kwargs` what it was given, and `default_args` what the DAG, the task group
        and its own default_args give.
        """
        _refuse_gpu_pool(made.kwargs.get("pool"))
        check_loops(cls.gpu_role, made.kwargs["task_group"], kwargs.get("gpu_pool"))
        if kwargs.get("gpu_pool") is not None:
            given_pool(kwargs["gpu_pool"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on when the trigger has an event; without deferring where it has handed the task's record back."""
        from airflow_gpu_provider.scaling.wait.records import is_handed_back

        event = (next_kwargs or {}).get("event")
        with self._ending(context):
            if isinstance(event, Mapping) and is_handed_back(event):
                return self._resume_here(event, context)
            try:
                return super().resume_execution(next_method, next_kwargs, context)
            except (TaskDeferralTimeout, TaskDeferralError) as error:
                return self._resume_without_event(error, context)

    def _resume_without_event(self, error: Exception, context: Context) -> Any:
        """Go on where the trigger itself died, or Airflow's own deferral timeout came first."""
        raise error

    def _resume_here(self, event: Mapping[str, Any], context: Context) -> Any:
        """Start again, in this process: what the task has done so far is found as it is."""
        self.log.warning("%s The task waits in its worker.", event["message"])
        self.deferrable, self._is_resumed = False, True
        return self.execute(context)

    def on_kill(self) -> None:
        """End the task with TaskKilled, never green: see `Stop`. What it began in the cloud or cluster continues."""
        doing = self._doing.format(pool=getattr(getattr(self, "gpu_pool", None), "name", ""))
        self._stop.ask(TaskKilled(f"Task {self.task_id} received SIGTERM; at that point it {doing}.", self._after_kill))

    def get_openlineage_facets_on_complete(self, task_instance: object) -> Lineage:
        """Return the run facet of its event, where apache-airflow-providers-openlineage emits one."""
        from airflow_gpu_provider.tasks.telemetry import of_nothing

        return self._lineage() if self._lineage else of_nothing()

    @contextmanager
    def _ending(self, context: Context) -> Iterator[None]:
        """Count how the task ends, and leave its error in XCom, for notifications and the web UI; heed its timeout."""
        from airflow_gpu_provider.tasks.telemetry import count_outcome

        if self._is_ending:  # execute() of a class calls that of its parent
            yield
            return
        self._is_ending = True
        with self._stop.heeding_timeout():
            try:
                yield
                count_outcome(self, None)
            except GpuError as error:
                count_outcome(self, error)
                try:
                    leave_error(context["ti"], error)
                except Exception:  # the task's own error counts
                    self.log.warning("The task's error could not be stored in XCom", exc_info=True)
                raise
            finally:
                self._is_ending = False

    def _open(self, context: Context, pool: GpuPool) -> Reconciler:
        """Connect to a pool in the task's name."""
        from airflow_gpu_provider.tasks.run_identity import pool_opener

        return pool_opener(context, self.log.info)(pool)

    def _defer_to(self, trigger: BaseTrigger, what: str, *, until: datetime, timeout: timedelta) -> NoReturn:
        self.log.info("Waiting in the triggerer for %s, until %s at the latest", what, f"{until:%Y-%m-%d %H:%M:%SZ}")
        self.defer(trigger=trigger, method_name="resume", timeout=timeout)

    def _by_keyword(self, name: str, value: Any, otherwise: Any) -> Any:
        """Return the value of an argument that is not for default_args: there, its name means another operator's."""
        return value if name in self._keywords else otherwise


def _leaving_its_error(execute: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(execute)
    def leaving_its_error(self: PoolOperator, context: Context, *args: Any, **kwargs: Any) -> Any:
        with self._ending(context):
            return execute(self, context, *args, **kwargs)

    return leaving_its_error


def leave_error(ti: Any, error: GpuError) -> None:
    """Leave a task's error in XCom, as docs/xcom.md has it."""
    from airflow_gpu_provider.tasks.without_log import without_log

    # XCom masks nothing by itself, and an error may quote a line of the training's log.
    sentences = _masked({"what": error.what, "fix": error.fix})
    record = {"task_id": ti.task_id, "map_index": ti.map_index, "type": type(error).__name__, **sentences}
    if (brief := _masked(without_log(error))) != sentences:
        record["without_log"] = brief
    ti.xcom_push(key=ERROR, value=storable(record))


def _masked(sentences: Mapping[str, str]) -> dict[str, str]:
    from airflow.providers.common.compat.sdk import redact

    return {name: str(redact(sentence)) for name, sentence in sentences.items()}


def given_pool(gpu_pool: GpuPool) -> GpuPool:
    """Return a task's gpu_pool; PoolSpecError if it is no pool, and nothing that Airflow renders before the task."""
    if not hasattr(gpu_pool, "resolve") and not is_template(gpu_pool):  # an XComArg has it, and so has a pool
        raise no_pool(gpu_pool)
    return gpu_pool


def no_pool(gpu_pool: object) -> PoolSpecError:
    return PoolSpecError(f"gpu_pool={gpu_pool!r}.", "Give the pool itself, such as an EksGpuPool.")


def check_pools(gpu_pools: Iterable[object]) -> None:
    """Refuse gpu_pools that are no list of pools; raises PoolSpecError."""
    if isinstance(gpu_pools, GpuPool):
        raise PoolSpecError(f"gpu_pools is the pool {gpu_pools.name}.", "Give a list: gpu_pools=[...].")
    for each in gpu_pools:
        if not isinstance(each, GpuPool):
            fix = "Give the pools themselves, such as an EksGpuPool."
            raise PoolSpecError(f"gpu_pools has {each!r}.", fix)


def _refuse_gpu_pool(pool: Any) -> None:
    if isinstance(pool, GpuPool):
        raise PoolSpecError("pool= was given a GPU pool.", "Give it as gpu_pool=; pool= is Airflow's slot pool.")


@cache
def argument_defaults(operator: type[BaseOperator], *, with_base: bool = True) -> dict[str, Any]:
    """Return the arguments of an operator that have a default, by name; the most derived class's counts.

    Without its base: those that BaseOperator alone has are left out. Airflow's `partial` gives these other values than
    BaseOperator's signature has, an empty list for None say.
    """
    found: dict[str, Any] = {}
    for level in reversed(operator.__mro__[: operator.__mro__.index(BaseOperator) + with_base]):
        if "__init__" in vars(level):
            parameters = inspect.signature(vars(level)["__init__"]).parameters
            found |= {name: each.default for name, each in parameters.items() if name not in _MADE_WITH}
    return {name: default for name, default in found.items() if default is not inspect.Parameter.empty}


def duration(argument: str, value: float | timedelta) -> timedelta:
    """Return a time that is given as Airflow's sensors take it: in seconds, or as a timedelta."""
    given = value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < timedelta.max.total_seconds():
        value = timedelta(seconds=value)
    if not isinstance(value, timedelta) or value < timedelta():
        raise PoolSpecError(f"{argument}={given!r}.", "Give a timedelta, or a number of seconds, at least 0.")
    return value


def seconds_of(argument: str, given: float | timedelta | None) -> float | None:
    """Return a `duration` that may be left out in seconds; None for 0 too."""
    return None if given is None else duration(argument, given).total_seconds() or None


# -- which `gpu_nodes` blocks are open while a DAG file is read: an operator in one takes its pool from there ------


@dataclass(frozen=True)
class Block:
    """A block of a DAG: its pool, and the name of its demand among those of a run."""

    pool: GpuPool
    block_id: str


_open: ContextVar[tuple[Block, ...]] = ContextVar("gpu_nodes_blocks", default=())


@contextmanager
def opened(block: Block) -> Iterator[None]:
    token = _open.set((*_open.get(), block))
    try:
        yield
    finally:
        _open.reset(token)


def current_pool() -> GpuPool | None:
    """Return the pool of the innermost `gpu_nodes` block that is open, or None."""
    return _open.get()[-1].pool if _open.get() else None


def block_of(gpu_pool: GpuPool) -> str:
    """Return the block_id of the innermost `gpu_nodes` block of this pool that is open; empty outside of any."""
    return next((each.block_id for each in reversed(_open.get()) if each.pool.name == gpu_pool.name), "")
