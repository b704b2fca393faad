"""Sources that write rows to a journal first: its rows and state, their masks, and the pollers."""
