"""Which engines there are: the released module of each, what a cluster gets of it, and the program that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpu_sandbox.build import CONTROL_PLANE, Amendment, GoModule, GoProgram

EngineName = Literal["jobset", "trainer", "kueue", "kuberay-crds", "training-operator-crds"]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What a cluster has once it is installed. Paths are the module's, and may be patterns.

    Attributes:
        name: Of the engine, of its process and of its log.
        module: Where its manifests are from.
        crds: Paths of its custom resource definitions.
        program: What runs its controllers and webhooks; none where only its resources are installed.
        account: The user as whom it acts: the service account that its manifests have for it.
        webhooks: Path of its webhook configurations.
        webhook_groups: API groups of the webhooks that are installed; by default of all.
        selectors: What its manifests narrow webhooks by, for each webhook's name.
        converted: Custom resources whose versions its webhook converts.
        objects: Paths of what else its manifests create.
        needs: Another engine that it works through.
    """

    name: EngineName
    module: GoModule
    crds: tuple[str, ...]
    program: GoProgram | None = None
    account: str = ""
    webhooks: str = ""
    webhook_groups: frozenset[str] | None = None
    selectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    converted: frozenset[str] = frozenset()
    objects: tuple[str, ...] = ()
    needs: EngineName | None = None


TRAINING = GoProgram(
    name="engines",
    # The control plane's module, so that most of it is compiled already.
    module=CONTROL_PLANE.module,
    package="engines",
    title="the controllers of JobSet and Kubeflow Trainer",
    takes="after the control plane half a minute",
    packages=112,
)

_MADE_BY_A_JOBSET = {
    "objectSelector": {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}
}

JOBSET = Engine(
    name="jobset",
    module=GoModule(
        path="sigs.k8s.io/jobset", version="v0.12.0", sum="h1:YYPuV0px8Ongq/RXmJg6V0w2UC67aiR+rCMD06vhQQQ="
    ),
    crds=("config/components/crd/bases/*.yaml",),
    program=TRAINING,
    account="jobset-controller-manager",
    webhooks="config/components/webhook/manifests.yaml",
    # config/components/webhook/patches
    selectors={"mpod.kb.io": _MADE_BY_A_JOBSET, "vpod.kb.io": _MADE_BY_A_JOBSET},
)

TRAINER = Engine(
    name="trainer",
    module=GoModule(
        path="github.com/kubeflow/trainer/v2",
        version="v2.2.1",
        sum="h1:GsM80cgxnLnd8j8+lrX/Dpcvw7DYqpxkL0ni4XA/U7Y=",
    ),
    crds=("manifests/base/crds/trainer.*.yaml",),
    program=TRAINING,
    account="kubeflow-trainer-controller-manager",
    webhooks="manifests/base/webhook/manifests.yaml",
    objects=("manifests/base/runtimes/*_distributed.yaml",),
    needs="jobset",
)

KUEUE_PROGRAM = GoProgram(
    name="kueue",
    module=Path(__file__).parent / "kueue",
    title="Kueue",
    takes="after the control plane a minute",
    packages=200,
    amendment=Amendment(
        module=GoModule(
            path="sigs.k8s.io/controller-runtime",
            version="v0.22.4",
            sum="h1:GEjV7KV3TY8e+tJ2LCTxUTanW4z/FmNB7l327UfMq9A=",
        ),
        target="controller-runtime",
        file="has_synced_checker.go.txt",
        added_as="pkg/cache/has_synced_checker.go",
    ),
)

_NOT_OF_THE_SYSTEM = {
    "namespaceSelector": {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "kueue-system"]}
        ]
    }
}

KUEUE = Engine(
    name="kueue",
    module=GoModule(path="sigs.k8s.io/kueue", version="v0.16.1", sum="h1:67H0gT8VvY3kJKbI6XI09OyJ1UJ0eJ8mbOw0ITHJVpU="),
    crds=("config/components/crd/bases/*.yaml",),
    program=KUEUE_PROGRAM,
    account="kueue-controller-manager",
    webhooks="config/components/webhook/manifests.yaml",
    # Of kinds that its main.go has an integration for.
    webhook_groups=frozenset(
        {"kueue.x-k8s.io", "", "batch", "apps", "jobset.x-k8s.io", "trainer.kubeflow.org"},
    ),
    # config/components/webhook/kustomization.yaml
    selectors={
        f"{verb}{kind}.kb.io": _NOT_OF_THE_SYSTEM for verb in "mv" for kind in ("pod", "deployment", "statefulset")
    },
    # config/components/crd/kustomization.yaml
    converted=frozenset(
        f"{kind}.kueue.x-k8s.io"
        for kind in ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")
    ),
)

KUBERAY_CRDS = Engine(
    name="kuberay-crds",
    module=GoModule(
        path="github.com/ray-project/kuberay/ray-operator",
        version="v1.6.1",
        sum="h1:IMtV0QW8AxGp4/CbPLd/olXBBxpUNQQr1n4Mu59khl4=",
    ),
    crds=("config/crd/bases/*.yaml",),
)

TRAINING_OPERATOR_CRDS = Engine(
    name="training-operator-crds",
    module=GoModule(
        path="github.com/kubeflow/training-operator",
        version="v1.9.3",
        sum="h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
    ),
    crds=("manifests/base/crds/kubeflow.org_*.yaml",),
)

ENGINES: Mapping[EngineName, Engine] = {
    each.name: each for each in (JOBSET, TRAINER, KUEUE, KUBERAY_CRDS, TRAINING_OPERATOR_CRDS)
}


def with_needed(names: Iterable[EngineName]) -> tuple[EngineName, ...]:
    """The engines of these names and those they need, in the order of the catalogue. ValueError if one is unknown."""
    asked = set(names)
    if unknown := sorted(asked - set(ENGINES)):
        raise ValueError(f"no engine is named {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    needed = {need for name in asked if (need := ENGINES[name].needs)}
    return tuple(name for name in ENGINES if name in asked | needed)
