"""Measures of the package as a house: where it asks which cloud a pool is, and which modules need each other."""
