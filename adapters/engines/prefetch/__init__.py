"""Batches decoded in worker processes before they are needed."""
