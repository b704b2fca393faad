"""The read side over HTTP: tables, rows, histories, and pages for people."""

from .problems import refused
from .routes import Reads

__all__ = ["Reads", "refused"]
