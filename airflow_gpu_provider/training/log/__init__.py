"""Logs of pods: followed, kept, masked, and gone on with by whoever is next."""
