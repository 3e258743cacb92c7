"""Chat templates: their sources, their sandbox and its limits."""
