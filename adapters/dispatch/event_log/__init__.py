"""The event log, at the place its options name."""

from .local import event_log_sink

__all__ = ["event_log_sink"]
