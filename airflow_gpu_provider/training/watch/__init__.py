"""What is seen of pods, gangs and workloads while they run."""
