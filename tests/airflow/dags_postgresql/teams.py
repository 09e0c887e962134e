"""Two teams of one Airflow: a training that does its worst, and an ordinary one beside it, on a pool of its own."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from tests.airflow.retries import AGAIN

HOSTILE = r"""
import os, ssl, subprocess, sys, urllib.error, urllib.request

account = "/var/run/secrets/kubernetes.io/serviceaccount"
server = "https://%(KUBERNETES_SERVICE_HOST)s:%(KUBERNETES_SERVICE_PORT)s" % os.environ
path = "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
request = urllib.request.Request(server + path, headers={"Authorization": "Bearer " + open(account + "/token").read()})
try:
    answer = urllib.request.urlopen(request, context=ssl.create_default_context(cafile=account + "/ca.crt")).status
except urllib.error.HTTPError as error:
    answer = error.code
print("asked for others' Leases:", answer, flush=True)

os.makedirs("/dev/shm/bin")
with open("/dev/shm/bin/nvidia-smi", "w") as program:
    print("#!/bin/sh", "touch /dev/shm/sampled", "exec yes " + ", ".join(["9" * 400] * 4), sep="\n", file=program)
os.chmod("/dev/shm/bin/nvidia-smi", 0o755)
for _ in range(750):
    print("y" * 4000)
print("NVRM: Xid (PCI:0000:00:1e): 79, pid=1, GPU has fallen off the bus.")
sys.stdout.flush()
sys.stdout.buffer.write("NUL \x00, half \ud83d of a pair, \x1b[2J, \u202egnp\n".encode("utf-8", "surrogatepass"))
sys.stdout.buffer.write(b"\xff\n")
sys.stdout.flush()
subprocess.run(["sh", "-c", "until [ -e /dev/shm/end ]; do sleep 0.2; done"])
open("/airflow/xcom/return.json", "wb").write(b'{"loss": 1}\x00')
"""
ORDINARY = "until [ -e /dev/shm/end ]; do sleep 0.2; done; echo '{\"loss\": 1}' > /airflow/xcom/return.json"


def pool(name: str) -> EksGpuPool:
    return EksGpuPool(
        name=name,
        cluster_name=os.environ.get("GPU_SANDBOX_CLUSTER", "k8s-ml"),
        region=os.environ.get("GPU_SANDBOX_REGION", "us-west-2"),
        instance_types=["g6.xlarge"],
        zones=["us-west-2a"],
        max_nodes=1,
        max_runtime=timedelta(hours=1),
    )


with (
    DAG("team_hostile", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN),
    gpu_nodes(pool("team-hostile"), gpus=1),
):
    GpuPodOperator(
        task_id="train",
        image="python:3.12",
        cmds=["python3", "-c"],
        arguments=[HOSTILE],
        env_vars={"PATH": "/dev/shm/bin:" + os.environ.get("PATH", os.defpath)},
        do_xcom_push=True,
        retries=0,
    )

with (
    DAG("team_ordinary", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN),
    gpu_nodes(pool("team-ordinary"), gpus=1),
):
    GpuPodOperator(
        task_id="train", image="busybox:1.36", cmds=["sh", "-c"], arguments=[ORDINARY], do_xcom_push=True, retries=0
    )
