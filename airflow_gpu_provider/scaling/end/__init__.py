"""How nodes go: released at once, reaped, deleted with their pool, or kept longer."""
