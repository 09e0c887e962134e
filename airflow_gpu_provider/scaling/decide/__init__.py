"""What is to be done about a pool: from a snapshot, by pure functions."""
