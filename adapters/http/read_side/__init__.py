"""The read side over HTTP: tables, rows, histories, and HTML pages."""

from .request import refuse_unrouted
from .routes import EncodedSlashes, ReadSideRoutes

__all__ = ["EncodedSlashes", "ReadSideRoutes", "refuse_unrouted"]
