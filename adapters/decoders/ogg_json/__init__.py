"""Oracle GoldenGate's operations in JSON (the `json` formatter of GoldenGate for Big Data).

`{"table":"SHOP.ITEMS","op_type":"U","op_ts":"2024-02-29 10:00:00.123456","current_ts":"2024-02-29T10:00:01.000123",
"pos":"00000000020030003620","primary_keys":["ID"],"before":{"ID":1,"NAME":"b"},"after":{"ID":1,"NAME":"a"}}`

Source: Oracle, "Using the Pluggable Formatters".

**Tables** have the name in `table`. **Types** are not in the messages: declare the columns (`schema:`). Numbers, booleans
and text are read as the declared type, an array or object as its JSON text, binary values as Base64. **The key** is the
one in the configuration, or `primary_keys` if messages have it (`includePrimaryKeys=true`).

| `op_type` | |
| --- | --- |
| I, U, D | changes. A column missing in `after` of an update is unchanged. Another key in `before` is a key change |
| T | a truncate |

**Order** is `pos`, the position in the trail, a number of any length: usually the file and the offset in it, ten digits
each. So messages of a table may be in any partitions. Without `pos` the stream orders the messages of a table, which must
all be in one partition.
"""

from .decoder import OggJsonDecoder

__all__ = ["OggJsonDecoder"]
