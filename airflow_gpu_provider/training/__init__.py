"""What a task runs: a pod, a gang of pods, or a workload. life > watch > log > wait > place."""
