"""Functions over Arrow tables, shared by engines, decoders and sinks."""
