"""What is known of the machine types of nodes that may be any cloud's."""

from __future__ import annotations

from airflow_gpu_provider.accelerators import GpusOfMachine
from airflow_gpu_provider.clouds.aws import machine_types as ec2
from airflow_gpu_provider.clouds.google import machine_types as compute_engine


def gpus_of_type(name: str) -> GpusOfMachine | None:
    """Return the GPUs of a machine of that type; None where no cloud's catalogue knows it."""
    return ec2.gpus_of_type(name) or compute_engine.gpus_of_type(name)


def fast_network(name: str) -> str:
    """Return what NCCL can use besides TCP on machines of that type, in words; empty: nothing, or not known."""
    return ec2.fast_network(name) or compute_engine.fast_network(name)
