"""What `replicator doctor` looks at, one kind of thing per module. A source brings its own check in its own package."""
