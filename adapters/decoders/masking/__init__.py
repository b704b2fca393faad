"""Private columns of formats whose records say only what their rows say: masked in the records, which are then decoded.

A record that is stored has other values in the columns that have a mask, wherever it repeats them, and a header (`marks`)
that names these columns, so that they are not masked once more when it is read again. What is decoded live is the record as
it would be stored: what is read again is the same by that.

A format says where its records have values (`records.RecordOpener`); types are those of its table, so that a value has one
text however it is written (`to_mask`). What cannot be read, and may be of a table with private columns, is withheld.
"""
