"""Where objects are built: adapters by entry point, the rest by one container."""
