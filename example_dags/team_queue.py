"""GPUs that several teams share: Kueue says whose turn it is, and the tasks' logs say why they wait.

Three single trainings and one on two nodes, all in the LocalQueue of one team. Each waits until the team's quota has
room for the whole of it; where one of higher priority takes its place, it queues again, in the same try. The nodes are
there already: nothing is started or removed for those that wait.

To run it on a cluster of yours:

1. Install Kueue, and have a LocalQueue in namespace `default`: https://kueue.sigs.k8s.io/docs/tasks/manage/
2. `kubectl apply -f docs/rbac/kueue.yaml -f docs/rbac/several-nodes.yaml`, next to full.yaml.
3. Set what differs, as Airflow Variables (or as environment, `AIRFLOW_VAR_GPU_QUEUE=...`):

       gpu_queue           the LocalQueue                        default: team-a
       train_image         built from example_dags/train_digits  default: train-digits:1
       train_trees_image   built from example_dags/train_trees   default: train-trees:1

4. Have a connection `kubernetes_default`, and the label `gpus=true` on the nodes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG

from airflow_gpu_provider import GpuPodOperator, KubernetesGpuPool, gpu_nodes

shared_gpus = KubernetesGpuPool(name="shared-gpus", node_selector_labels={"gpus": "true"}, max_nodes=8)
training: dict[str, Any] = {
    "gpu_pool": shared_gpus,
    "queue_name": "{{ var.value.get('gpu_queue', 'team-a') }}",
    "cmds": ["python", "/app/train.py"],
    # Without a checkpoint it starts over.
    "on_preemption": "resume",
}

with DAG(
    "team_queue",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
    tags=["gpu", "kueue"],
):
    with gpu_nodes(shared_gpus, nodes=2):
        GpuPodOperator.partial(
            task_id="single", image="{{ var.value.get('train_image', 'train-digits:1') }}", **training
        ).expand(arguments=[["--seed", str(seed)] for seed in range(3)])
        GpuPodOperator(
            task_id="on_two_nodes",
            nodes=2,
            image="{{ var.value.get('train_trees_image', 'train-trees:1') }}",
            **training,
        )
