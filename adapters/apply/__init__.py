"""Stages of a plan that run in this process, the same for every sink."""
