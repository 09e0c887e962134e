"""A cluster, a cloud and time, in memory, for the model of the protocol; what is tested runs on them unchanged."""
