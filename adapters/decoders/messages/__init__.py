"""Shared code of decoders for formats whose messages name their table, operation and rows.

A format is a `message.MessageFormat`: it reads a message into changes of rows, and columns of these rows.
`json_format.JsonMessageFormat` reads columns of rows that are JSON objects. This package does the rest: routing, types,
missing values, key changes, order, envelopes.

Messages of one layout are read in batches if the format can do so (`message.BatchReader`): `changes` reads them with a
type generated for the layout, into columns. `changes.MessageChangeBlock` reads all other messages one by one. Both
ways give the same result.
"""
