"""A history of transactions derived from TPC-C (not a result of TPC-C), the same in every format that sources write it in.

`simulator` makes it and knows the tables that it ends with; `conditions` are those that hold between tables at any time
(clause 3.3.2); `formats` and `dts` write it as records. With the same seed it is the same.
"""

from .conditions import find_violations
from .formats import FORMATS, make_raw_frame
from .simulator import RowChange, Tpcc
from .tables import TABLES, TpccTable

__all__ = ["FORMATS", "TABLES", "RowChange", "Tpcc", "TpccTable", "find_violations", "make_raw_frame"]
