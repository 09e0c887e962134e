"""What a pod, a gang or a manifest asks for: pool, GPUs, checkpoint, queue. Pure, but for what fits."""
