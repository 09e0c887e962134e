"""Gangs: pods that run together or not at all, one on each of several nodes, as an Indexed Job has them. Names only."""

from __future__ import annotations

GANG_LABEL = "airflow-gpu-provider/gang"
"""The label of a gang's Job and of its pods: how many nodes it takes."""

RANK_ANNOTATION = "batch.kubernetes.io/job-completion-index"
"""Kubernetes' annotation of an Indexed Job's pods: which of them it is, from 0."""

JOB_LABEL = "batch.kubernetes.io/job-name"
"""Kubernetes' label of a Job's pods."""


def jobs_path(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"
