"""Reading event logs, wherever they are kept."""
