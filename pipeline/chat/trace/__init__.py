"""Fast rendering: a template runs once, on symbolic text, for all records of the same structure."""
