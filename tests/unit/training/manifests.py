"""A manifest of each kind, as users write them, and what its controller says at its end."""

from __future__ import annotations

import copy
from typing import Any

_TRAINS = {
    "name": "train",
    "image": "registry.example.com/train:1",
    "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}},
}
_ASKS_FOR_NOTHING = {"name": "head", "image": "registry.example.com/ray:2"}

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "template": {"spec": {"restartPolicy": "Never", "containers": [_TRAINS]}},
    },
}
JOB_SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train"},
    "spec": {
        "replicatedJobs": [
            {
                "name": "driver",
                "template": {"spec": {"template": {"spec": {"containers": [{"name": "driver", "image": "driver:1"}]}}}},
            },
            {
                "name": "workers",
                "replicas": 2,
                "template": {
                    "spec": {"parallelism": 2, "completions": 2, "template": {"spec": {"containers": [_TRAINS]}}}
                },
            },
        ]
    },
}
TRAIN_JOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "train"},
    "spec": {
        "runtimeRef": {"name": "torch-distributed"},
        "trainer": {
            "image": "registry.example.com/train:1",
            "numNodes": 2,
            "env": [{"name": "EPOCHS", "value": "3"}],
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
        },
    },
}
RAY_JOB = {
    "apiVersion": "ray.io/v1",
    "kind": "RayJob",
    "metadata": {"name": "train"},
    "spec": {
        "entrypoint": "python train.py",
        "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": [_ASKS_FOR_NOTHING]}}},
            "workerGroupSpecs": [
                {
                    "groupName": "gpus",
                    "replicas": 2,
                    "rayStartParams": {},
                    "template": {"spec": {"containers": [_TRAINS]}},
                }
            ],
        },
    },
}
PYTORCH_JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "train"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Master": {"template": {"spec": {"containers": [{**_TRAINS, "name": "pytorch"}]}}},
            "Worker": {"replicas": 3, "template": {"spec": {"containers": [{**_TRAINS, "name": "pytorch"}]}}},
        }
    },
}
ALL = {each["kind"]: each for each in (JOB, JOB_SET, TRAIN_JOB, RAY_JOB, PYTORCH_JOB)}


def a(kind: str) -> dict[str, Any]:
    """Return a copy of the kind's manifest."""
    return copy.deepcopy(ALL[kind])


def with_status(kind: str, **status: Any) -> dict[str, Any]:
    return {**a(kind), "status": status}


def with_condition(kind: str, condition: str, *, status: str = "True", **more: Any) -> dict[str, Any]:
    return with_status(kind, conditions=[{"type": condition, "status": status, **more}])
