"""Delta tables that are read while others write them."""
