"""When a wait is over, and how: each a step over what was seen. Pure."""
