"""What every Delta writer of this project shares: layout of a lake, positions, locks, types, commits."""
