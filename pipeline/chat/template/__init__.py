"""Chat templates: where their text is from, the sandbox that runs them, and its limits."""
