"""What speaks against a node's GPUs: its agents, a person's mark, and the failures of trainings on it. Pure.

So does a training that asks for another node by its exit code, but only for its own DAG.

A training's log is text that its author writes, so one DAG's failures keep only that DAG's pods off a node. Two
witnesses keep all pods off it: two DAGs, or one DAG and an agent on the node (health_agents). The failures are kept in
an annotation on the node, so that they are there for every task and go with the node. They count for one boot of the
machine: a reset GPU is used again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from airflow_gpu_provider.cluster.model.health_agents import reason_of_agents
from airflow_gpu_provider.cluster.model.node_requirements import Requirement
from airflow_gpu_provider.times import format_time
from airflow_gpu_provider.untrusted import loads, one_line

BAD_GPU = "airflow-gpu-provider/bad-gpu"
"""The annotation on a node with the failures of trainings by its GPUs, and in which boot. Taking it off forgives.

The label of that name, by which all pods avoid the node, follows it and what agents say. A person may set either:
then the node is avoided until it is taken off."""

ASKED = "asked_for_node"
"""The key of an error's details that is True where the training has asked for another node."""

OURS = "boot-"
"""How the value of a label begins, unless a person has set it."""

HOSTNAME = "kubernetes.io/hostname"
"""The label that pods exclude where nodes get no label of this package."""

MOST_WITNESSES = 4
"""Kept of a node, the newest: two are enough."""

LONGEST_WHAT = 300
"""Characters of what a witness says."""

_BY_AGENT = "node"  # a DAG's name has a slash


@dataclass(frozen=True, kw_only=True)
class Witness:
    """One source of evidence against a node's GPUs, by its last word.

    Attributes:
        by: The DAG, "<installation>/<dag>" (DemandKey.writer); "node" for an agent on the node.
        run: The DAG run; empty for an agent.
        at: When, by the cluster's clock, as RFC 3339.
        what: The failure in one line, its last log line included, of at most LONGEST_WHAT characters.
        is_request: The training has asked for another node; whether its GPU is broken is unknown.
    """

    by: str
    run: str
    at: str
    what: str
    is_request: bool = False

    @classmethod
    def of_failure(cls, by: str, run: str, at: datetime, what: str, *, is_request: bool = False) -> Self:
        return cls(by=by, run=run, at=format_time(at), what=one_line(what, LONGEST_WHAT), is_request=is_request)

    @property
    def in_words(self) -> str:
        if self.by == _BY_AGENT:
            return self.what
        return f"{self.what.rstrip('.')} in {self.by.rpartition('/')[2]} {self.run} at {self.at}"

    def to_json(self) -> dict[str, Any]:
        request = {"request": True} if self.is_request else {}
        return {"by": self.by, "run": self.run, "at": self.at, "what": self.what, **request}

    @classmethod
    def of_json(cls, raw: Mapping[str, Any]) -> Self:
        """Read it; raises KeyError or TypeError if it is none."""
        texts = {key: one_line(str(raw[key]), 2 * LONGEST_WHAT) for key in ("by", "run", "at", "what")}
        return cls(**texts, is_request=raw.get("request") is True)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The witnesses against a node's GPUs in one boot of its machine: one of each source, the oldest first."""

    boot: str
    witnesses: tuple[Witness, ...] = ()

    @property
    def counts_for_all(self) -> bool:
        """Whether all pods avoid the node."""
        return sum(not witness.is_request for witness in self.witnesses) > 1

    @property
    def in_words(self) -> str:
        return "; ".join(witness.in_words for witness in self.witnesses)

    def with_witness(self, witness: Witness) -> Self:
        """Return it with one more witness, in place of what the same source has said before.

        A request replaces no failure.
        """
        others = tuple(each for each in self.witnesses if each.by != witness.by)
        if witness.is_request and any(not each.is_request for each in self.witnesses if each.by == witness.by):
            return self
        return type(self)(boot=self.boot, witnesses=(*others, witness)[-MOST_WITNESSES:])

    def dump(self) -> str:
        """Return the annotation's value."""
        return json.dumps({"boot": self.boot, "witnesses": [each.to_json() for each in self.witnesses]})

    @classmethod
    def of_node(cls, raw: Mapping[str, Any]) -> Self | None:
        """Return what the node's annotation has of its present boot; None if a person has written the annotation."""
        none, text = cls(boot=_boot_of(raw)), _annotation_of(raw)
        if text is None:
            return none
        try:
            mark = loads(text)
            found = {witness.by: witness for witness in map(Witness.of_json, mark["witnesses"])}
            is_of_this_boot = mark["boot"] == none.boot
        except (KeyError, TypeError, ValueError):
            return None
        return cls(boot=none.boot, witnesses=tuple(found.values())) if is_of_this_boot else none


def why_bad(raw: Mapping[str, Any]) -> str:
    """Return why no pod is to use the node's GPUs, in words; empty where nothing speaks against them for all pods."""
    return reason_of_agents(raw) or _by_evidence(raw) or _by_label(raw)


def doubt(raw: Mapping[str, Any]) -> Witness | None:
    """Return the one DAG whose pods alone are to avoid the node, with its failure; None where that is so of no DAG."""
    evidence = Evidence.of_node(raw)
    if evidence is None or not evidence.witnesses or why_bad(raw):  # most nodes have no witness: asked first
        return None
    failures = [witness for witness in evidence.witnesses if not witness.is_request]
    return failures[0] if failures else evidence.witnesses[-1]


def accused(raw: Mapping[str, Any], witness: Witness) -> Evidence | None:
    """Return the evidence against a node with one more witness; an agent that speaks against it is a witness as well.

    None if a person has marked the node, whose mark stays.
    """
    evidence = Evidence.of_node(raw)
    if evidence is None:
        return None
    if reason := reason_of_agents(raw):
        what = one_line(reason, LONGEST_WHAT)
        evidence = evidence.with_witness(Witness(by=_BY_AGENT, run="", at=witness.at, what=what))
    return evidence.with_witness(witness)


def labels_of(raw: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the changes of a node's labels that make them follow what speaks against its GPUs; None takes one off.

    A person's own labels stay.
    """
    there = raw["metadata"].get("labels") or {}
    wanted = set()
    if why_bad(raw):
        wanted.add(BAD_GPU)
    elif one := doubt(raw):
        wanted.add(label_for(one.by))
    value = OURS + _boot_of(raw)
    stale = {key for key, had in there.items() if key.startswith(BAD_GPU) and had.startswith(OURS)} - wanted
    return {**{key: value for key in wanted if key not in there}, **dict.fromkeys(stale)}


def label_for(by: str) -> str:
    """Return the label by which the pods of one DAG avoid a node; `by` is "<installation>/<dag>"."""
    return f"{BAD_GPU}-{hashlib.sha256(by.encode()).hexdigest()[:20]}"


def avoided_by(pod: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """Return by which requirements a pod avoids nodes with a broken GPU, from its JSON."""
    affinity = ((pod.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or [{}]
    return tuple(
        each
        for each in terms[0].get("matchExpressions") or ()  # they are in each of the terms
        if each["key"].startswith(BAD_GPU) or (each["key"] == HOSTNAME and each["operator"] == "NotIn")
    )


def _by_evidence(raw: Mapping[str, Any]) -> str:
    evidence = Evidence.of_node(raw)
    if evidence is None:
        return f"the annotation {BAD_GPU}"  # a person's own
    return evidence.in_words if evidence.counts_for_all else ""


def _by_label(raw: Mapping[str, Any]) -> str:
    label = (raw["metadata"].get("labels") or {}).get(BAD_GPU)
    return "" if label is None or label.startswith(OURS) else f"the label {BAD_GPU}"  # a person's own


def _annotation_of(raw: Mapping[str, Any]) -> str | None:
    text: str | None = (raw["metadata"].get("annotations") or {}).get(BAD_GPU)
    return text


def _boot_of(raw: Mapping[str, Any]) -> str:
    return str(((raw.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))
