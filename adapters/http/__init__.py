"""HTTP servers: metrics, health, status page and run-time control of the daemon; events and rows."""
