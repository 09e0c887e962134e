"""Provider metadata for Airflow; loaded at every `airflow` call, so it imports nothing.

The web UI's plugin is registered not here but by the entry point `airflow.plugins`, in pyproject.toml. Airflow reads a
provider's `plugins` only where [core] lazy_discover_providers is off, which is not its default, and a plugin that is
registered both ways is an import error.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, in the form of Airflow's provider_info.schema.json."""
    package = "airflow_gpu_provider"
    integration = "GPU pools"
    guides = (
        "s0-one-pool",
        "s1-whole-cluster",
        "s2-quota-and-driver",
        "s3-existing-nodes",
        "s4-three-zones",
        "s5-two-nodes",
    )
    operators = (
        *("delete", "ensure", "extend", "gpu_pod", "gpu_workload"),
        *("install_cluster_autoscaler", "install_device_plugin", "reap", "reports"),
    )
    triggers = "device_plugin_ready", "pod", "pool", "record"
    return {
        "package-name": "airflow-gpu-provider",
        "name": "GPU Provider",
        "description": "Scale a GPU pool up from zero, run the CUDA training pod, scale back to zero.",
        "integrations": [
            {
                "integration-name": integration,
                "external-doc-url": "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
                "how-to-guide": [f"/docs/howto/{name}.md" for name in guides],
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": integration,
                "python-modules": [f"{package}.operators.{name}" for name in operators],
            }
        ],
        "sensors": [{"integration-name": integration, "python-modules": [f"{package}.sensors.scale_down"]}],
        "triggers": [
            {
                "integration-name": integration,
                "python-modules": [f"{package}.triggers.{name}" for name in triggers],
            }
        ],
        "task-decorators": [{"class-name": f"{package}.decorators.gpu.gpu_task", "name": "gpu"}],
        "notifications": [f"{package}.notifications.gpu_night.GpuNightNotifier"],
        "extra-links": [
            f"{package}.tasks.links.{name}" for name in ("RunNodesLink", "NodeGroupsLink", "KueueQueueLink")
        ],
        "cli": [f"{package}.cli.get_commands"],
        "config": {
            "gpu_provider": {
                "description": "Settings of airflow-gpu-provider.",
                "options": {
                    "exec_plugins": {
                        "description": (
                            "Whether the kubeconfig of a Kubernetes connection may run a command for its credentials "
                            "(an exec plugin), in worker and triggerer. When False, such a connection is an error."
                        ),
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": "False",
                        "default": "True",
                    },
                    "installation_id": {
                        "description": (
                            "Tells this Airflow installation's demand for GPU nodes from that of others that share "
                            "a cluster with it. When empty, the package keeps one in an Airflow Variable."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "prod-eu",
                        "default": "",
                    },
                    "kueueviz_url": {
                        "description": (
                            "Where KueueViz, Kueue's dashboard, is: trainings with queue_name link to their LocalQueue "
                            "there. When empty, they have no such link."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "https://kueueviz.example.com",
                        "default": "",
                    },
                    "log_streams": {
                        "description": (
                            "How many containers' logs one triggerer streams at once into the logs of deferred "
                            "tasks. Others are followed when one of these ends, or read when their pod ends. 0: none."
                        ),
                        "version_added": "0.1.0",
                        "type": "integer",
                        "example": "100",
                        "default": "50",
                    },
                    "ui": {
                        "description": "Whether Airflow's web UI has the page GPU pools and a tab on each DAG run.",
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": "False",
                        "default": "True",
                    },
                },
            }
        },
    }
