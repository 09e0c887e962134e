"""What is in a cluster, as small records, and what follows from them. Pure: no request, no clock, no client."""
