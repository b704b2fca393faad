"""A history of transactions derived from TPC-C (not a result of TPC-C), in every format of the sources.

`simulator` makes the history and its final tables. `conditions` has the conditions between tables that hold at any time
(clause 3.3.2). `formats` and `dts` write the history as records. The same seed makes the same history.
"""

from .conditions import find_violations
from .formats import FORMATS, make_raw_frame
from .simulator import RowChange, Tpcc
from .tables import TABLES, TpccTable

__all__ = ["FORMATS", "TABLES", "RowChange", "Tpcc", "TpccTable", "find_violations", "make_raw_frame"]
