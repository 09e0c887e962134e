"""How tasks wait: a pure step, the loop around it, what it tolerates, and what travels to a trigger."""
