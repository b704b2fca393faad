"""What a change is and what a policy means. Knows no engine, no driver and no configuration file."""
