"""Task decorators: a Python function as a task on a GPU pool."""
