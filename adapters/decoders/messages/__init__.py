"""Shared code of decoders for formats whose messages name their table, operation and rows.

A format is a `message.MessageFormat`: it reads a message into changes of rows, and columns of these rows.
`json_format.JsonMessageFormat` reads columns of rows that are JSON objects. This package does the rest: routing, types,
missing values, key changes, order, envelopes.

Messages of one layout are read in batches if the format can do so (`message.BatchReader`, `batch_reader`, `columns`).
They are read with a type generated for the layout, into columns. All other messages are read one by one by
`changes.MessageChangeBlock`. Both ways give the same result.
"""
