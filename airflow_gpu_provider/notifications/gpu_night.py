"""GpuNightNotifier: hands a DAG run on GPU nodes, in two lines, to Airflow's notifiers."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_gpu_provider.errors import PoolSpecError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.notifications.night import Night


class GpuNightNotifier(BaseNotifier):
    """Say what a DAG run's GPU nodes did: what failed, how long it waited and ran, its cost, and what is left.

    For `on_failure_callback` and `on_success_callback`, of a DAG or of a task. A DAG's are called once the run has
    ended, so that scale-down and cost are known; a task's are called before that.

        slack = SlackWebhookNotifier(slack_webhook_conn_id="ml", text="{{ night.in_words }}")
        with DAG("nightly", on_failure_callback=GpuNightNotifier(slack), ...):

    A DeadlineAlert takes a function of the DAG file that calls it: docs/errors.md.

    Args:
        *send: Airflow's notifiers, whose templates have `night` (`night.in_words` for a chat and a mail in HTML,
            `night.in_plain_words` for plain text, and the fields of `Night`); or functions that take the Night. The
            two lines are written to the callback's log as well, and only there without any.
        with_log: Quote in errors what a training has printed: its last lines, the line that says why it failed.
            Default False: not everybody who reads a chat may read a training's log.

    Raises:
        PoolSpecError: Something else is given.
        ExceptionGroup: Some of them failed; the others have been called.
    """

    def __init__(self, *send: BaseNotifier | Callable[[Night], Any], with_log: bool = False) -> None:
        super().__init__()
        for each in send:
            if isinstance(each, type) or iscoroutinefunction(each) or not callable(each):
                fix = "Give notifiers of Airflow's (the objects, not their classes), or plain functions of a Night."
                raise PoolSpecError(f"GpuNightNotifier was given {each!r}.", fix)
        self.send = send
        self.with_log = with_log

    def notify(self, context: Context) -> None:
        """Send the night of the context's run with each notifier."""
        from airflow_gpu_provider.notifications.night_facts import night_of

        night = night_of(context, with_log=self.with_log)
        self.log.info("%s", night.in_plain_words)
        failed = []
        for each in self.send:
            try:
                _send(each, night, context)
            except Exception as error:  # one channel that is down silences no other
                self.log.warning("The night could not be sent by %s", _name(each), exc_info=True)
                failed.append(error)
        if failed:
            raise ExceptionGroup("The night could not be sent to each of its notifiers", failed)


def _name(to: Any) -> str:
    return str(getattr(to, "__name__", type(to).__name__))


def _send(to: BaseNotifier | Callable[[Night], Any], night: Night, context: Context) -> None:
    if isinstance(to, BaseNotifier):
        # A copy, for rendering a notifier's templates replaces them.
        copy(to)({**context, "night": night})
    else:
        to(night)
