"""What a pool's cluster keeps of its runs' use of machines, and what is reported of it: log lines and metrics."""
