"""What a DAG run's GPU nodes did, told where people look: by any notifier of Airflow's."""

from airflow_gpu_provider.notifications.chat import for_chat
from airflow_gpu_provider.notifications.gpu_night import GpuNightNotifier

__all__ = ["GpuNightNotifier", "for_chat"]
