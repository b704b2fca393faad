"""Object stores: options, clients, files and errors."""
