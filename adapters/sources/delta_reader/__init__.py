"""Reading of Delta tables while others write them."""
