"""Conditions, expressions and transforms of rows and columns, over Arrow."""
