"""What a pool is: frozen specs, pure data. Nothing here talks to a cloud, a cluster or Airflow's database."""

from airflow_gpu_provider.pools.candidates import Candidate
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.values import Taint

__all__ = ["Candidate", "GpuPool", "Taint"]
