"""A history of transactions derived from TPC-C (not a result of TPC-C), the same in every format that sources write it in.

`simulator` makes it and knows the tables that it ends with; `conditions` are those that hold between tables at any time
(clause 3.3.2); `formats` and `dts` write it as records. With the same seed it is the same.
"""

from .conditions import violated
from .formats import FORMATS, raw_frame
from .simulator import Change, Tpcc
from .tables import TABLES, Table

__all__ = ["FORMATS", "TABLES", "Change", "Table", "Tpcc", "raw_frame", "violated"]
