"""From plans to SQL text, one dialect per engine; shared by engines and sinks."""
