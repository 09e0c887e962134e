"""What runs' nodes did and cost: recorded in the cluster, divided among runs, and reported."""
