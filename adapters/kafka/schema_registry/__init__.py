"""Schema registries: schemas by the ids in records, and the errors of a registry."""
