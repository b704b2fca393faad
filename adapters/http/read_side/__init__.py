"""The read side over HTTP: tables, rows, histories, and pages for people."""

from .problems import refuse_unrouted
from .routes import EncodedSlashes, ReadSideRoutes

__all__ = ["EncodedSlashes", "ReadSideRoutes", "refuse_unrouted"]
