"""Controllers that clusters have beside Kubernetes' own: the real ones of JobSet, Kubeflow Trainer and Kueue.

Two kinds have their custom resources here and no controller: those of KubeRay and of Kubeflow's training operator.
"""

from gpu_sandbox.engines.catalogue import ENGINES, EngineName, with_needed
from gpu_sandbox.engines.running import Engines, compile_engines

__all__ = ["ENGINES", "EngineName", "Engines", "compile_engines", "with_needed"]
