"""Decoders of formats whose messages each say their table, their operation and their rows: what they have in common.

A format is a `message.Form`: it reads a message into changes of rows as JSON text. Everything else is here: routing,
types, what rows lack, changes of keys, order, envelopes.
"""
