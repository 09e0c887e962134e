"""A stand-in for cluster-autoscaler 1.36: it grows and shrinks groups of machines by the same rules and signs.

It follows what cluster-autoscaler (CA) shows to others: which groups it takes, when it acts, its events, taints and
status.
"""

from __future__ import annotations

from gpu_sandbox.autoscaler.autoscaler import Autoscaler
from gpu_sandbox.autoscaler.groups import FailedLaunch, NodeGroup, NodeGroups, NodeTemplate
from gpu_sandbox.autoscaler.timings import AutoscalerTimings

__all__ = ["Autoscaler", "AutoscalerTimings", "FailedLaunch", "NodeGroup", "NodeGroups", "NodeTemplate"]
