"""Schema registries: schemas by the ids that records carry, and what a registry's answers mean."""
