"""What a pool is: frozen specs, pure data. Nothing here talks to a cloud, a cluster or Airflow's database."""

from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.google.pool import GkeGpuPool
from airflow_gpu_provider.clouds.kubernetes.pool import KubernetesGpuPool
from airflow_gpu_provider.pools.candidates import Candidate
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.values import Taint, deserialize_pool

__all__ = ["Candidate", "EksGpuPool", "GkeGpuPool", "GpuPool", "KubernetesGpuPool", "Taint", "deserialize_pool"]
