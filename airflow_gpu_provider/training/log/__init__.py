"""Logs of pods: followed, kept, masked, and continued by the next process."""
