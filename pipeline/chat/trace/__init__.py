"""Fast rendering: a template is run once for all records of one structure, on symbolic text."""
