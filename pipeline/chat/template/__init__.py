"""Chat templates: where they come from, and their sandbox."""
