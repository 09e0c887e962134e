"""A task's own code: which of its files travel, and how they are packed into ConfigMaps. No request is made here."""
