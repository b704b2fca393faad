"""Builds all objects: adapters by entry point, everything else by one container."""
