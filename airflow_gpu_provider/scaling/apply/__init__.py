"""What carries a decision out: under the pool's lock, by requests to cloud and cluster."""
