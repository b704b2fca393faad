"""The read side over HTTP: tables, rows, histories, and pages for people."""

from .problems import refused
from .routes import EncodedSlashes, Reads

__all__ = ["EncodedSlashes", "Reads", "refused"]
