"""Decoders of formats whose messages each say their table, their operation and their rows: what they have in common.

A format is a `message.MessageFormat`: it reads a message into changes of rows, and columns of these rows;
`json_format.JsonMessageFormat` does the latter for rows that are JSON objects. Everything else is here: routing, types,
what rows lack, changes of keys, order, envelopes.

Messages are read together where a form can (`message.BatchReader`, `many`, `columns`): by a type made for their layout, in
columns. What is out of the ordinary is left to `changes.Block`, which reads message by message; both come to the same.
"""
