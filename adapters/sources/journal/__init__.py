"""Options and masking of sources that write rows to a journal first."""
