"""What decoders of several formats share."""
