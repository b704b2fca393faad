"""Stages of a plan that run in this process. All sinks share them."""
