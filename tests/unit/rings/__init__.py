"""The rings of checks themselves."""
