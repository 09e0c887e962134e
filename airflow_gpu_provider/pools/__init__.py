"""What a pool is: frozen specs, pure data. Nothing here talks to a cloud, a cluster or Airflow's database."""

from airflow_gpu_provider.pools.base import Candidate, GpuPool, Taint, deserialize_pool
from airflow_gpu_provider.pools.eks import EksGpuPool

__all__ = ["Candidate", "EksGpuPool", "GpuPool", "Taint", "deserialize_pool"]
