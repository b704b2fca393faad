"""What people and machines see of a running daemon: metrics, health, a status page, run-time control."""
