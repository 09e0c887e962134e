"""What is installed in a cluster so that its nodes can offer GPUs: device plugins and drivers."""
