"""The Java runtime and the locked archives of all Java programs here."""
