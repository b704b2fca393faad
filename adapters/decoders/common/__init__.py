"""Code that decoders of several formats share."""
