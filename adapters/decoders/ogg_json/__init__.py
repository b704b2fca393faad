"""Oracle GoldenGate's operations in JSON (the `json` formatter of GoldenGate for Big Data).

`{"table":"SHOP.ITEMS","op_type":"U","op_ts":"2024-02-29 10:00:00.123456","current_ts":"2024-02-29T10:00:01.000123",
"pos":"00000000020030003620","primary_keys":["ID"],"before":{"ID":1,"NAME":"b"},"after":{"ID":1,"NAME":"a"}}`

Source: Oracle, "Using the Pluggable Formatters".

**Tables** are named as in `table`. **Types** are not sent: the table declares its columns (`schema:`). Numbers, truth
values and text are read as the declared type; an array or object is its JSON text; binary values are Base64. **The key** is
the one in the configuration, or `primary_keys` where messages have it (`includePrimaryKeys=true`).

| `op_type` | |
| --- | --- |
| I, U, D | changes; what `after` of an update lacks was not sent; another key in `before` moves the row |
| T | a truncate |

**Order** is `pos`, the place in the trail, as a number of any digits: usually that of its file and the offset in it, ten
digits each. So messages of a table may come through any partitions. The messages of a table without it are ordered by the
stream: they must all come through one.
"""

from .decoder import OggJsonDecoder

__all__ = ["OggJsonDecoder"]
