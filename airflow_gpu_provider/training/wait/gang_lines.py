"""What the task's log says about its gang: one line per change of the whole, not one per rank and event. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from airflow_gpu_provider.cluster.events import short_scheduling_message, size_in_words
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.training.wait.end import end_of, why_disrupted
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot
from airflow_gpu_provider.training.wait.workload_state import WorkloadState

_TOLD = 3
_PLURAL = {"has": "have", "is": "are", "was": "were", "waits": "wait", "starts": "start", "pulls": "pull"}
_NOT_TOLD = ("", "ContainerCreating", "PodInitializing")


def gang_lines(job: WorkloadState | None, ranks: Mapping[int, PodSnapshot], nodes: int, queued: str) -> list[str]:
    """Return a gang's state: its place in the queue, or how many ranks run and what the others wait for."""
    if job is None:
        return []
    if job.is_suspended:
        return [f"the gang of {nodes} waits to be admitted{f': {queued}' if queued else ''}"]
    if job.is_deleting:
        return ["the gang's Job is being deleted"]
    states = defaultdict(list)
    for rank in range(nodes):
        states[pod_in_words(ranks.get(rank))].append(rank)
    running, well = len(states.pop("runs", ())), len(states.pop("has finished", ()))
    if not states and well == nodes:
        return []
    finished = f", {well} {'has' if well == 1 else 'have'} finished" if well else ""
    in_order = sorted(states.items(), key=lambda item: item[1])
    others = [f"{ranks_in_words(each)} {state_of(state, len(each))}" for state, each in in_order]
    if len(others) > _TOLD:
        others = [*others[:_TOLD], f"{len(others) - _TOLD} more groups of ranks wait"]
    return ["; ".join([f"{running} of {nodes} ranks run{finished}", *others])]


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Return "rank 3", or "ranks 0-2, 5"."""
    numbers = sorted(ranks)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    words = [f"{span[0]}-{span[-1]}" if span[0] != span[-1] else str(span[0]) for span in spans]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(words)}"


def state_of(state: str, pods: int) -> str:
    """Return what `pod_in_words` says, for this many pods."""
    if pods == 1:
        return state
    verb, _, rest = state.partition(" ")
    return f"{_PLURAL.get(verb, verb)} {rest.replace('its ', 'their ', 1)}"


def pod_in_words(seen: PodSnapshot | None) -> str:
    """Return a pod's state, as the words after its name: "runs", "has finished", "waits for its node: ..."."""
    pod = seen.pod if seen else None
    if seen is None or pod is None:
        return "has no pod yet"
    if end := end_of(pod):
        return "has finished" if end.error is None else "has failed"
    if why := why_disrupted(pod):
        return f"is being preempted: {why}"
    if seen.gone:
        return "was deleted"
    if pod.gone_by:
        return "is being deleted"
    return "runs" if pod.started else _pending(pod, seen)


def _pending(pod: PodState, seen: PodSnapshot) -> str:
    events = seen.events
    if pod.scheduled_at is None:
        if seen.is_full:
            return "waits for its turn: the pool is full (all its nodes are up and in use)"
        about_nodes = [event.about_node for event in events if event.about_node]
        why = "; ".join(filter(None, (short_scheduling_message(pod.unschedulable), *about_nodes[-1:])))
        return f"waits for its node{f': {why}' if why else ''}"
    waiting = [one for one in pod.waiting if one.reason not in _NOT_TOLD]
    if waiting:
        return f"waits on node {pod.node}: {waiting[0].reason}: {waiting[0].message}".rstrip(": ")
    pulls = [event.pull for event in events if event.pull and event.pull.is_worth_telling]
    if pulls:
        last = pulls[-1]
        return f"has pulled its image{size_in_words(last.bytes)}, {last.seconds:.0f} s"
    if pulling := [event.pulling_image for event in events if event.pulling_image]:
        return f"pulls its image {pulling[-1]}"
    warnings = [event.in_words for event in events if event.type == "Warning" and event.in_words]
    return f"starts on node {pod.node}" + (f" ({warnings[-1]})" if warnings else "")
