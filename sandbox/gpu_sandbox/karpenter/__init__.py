"""The real Karpenter in a sandbox: its released code, whose machines are nodes of the sandbox that run pods."""

from gpu_sandbox.karpenter.cloud import InstanceType, MachineCloud, Offering, Refusal
from gpu_sandbox.karpenter.running import Karpenter, compile_karpenter

__all__ = ["InstanceType", "Karpenter", "MachineCloud", "Offering", "Refusal", "compile_karpenter"]
