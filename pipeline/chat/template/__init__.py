"""Chat templates: finding their text, the sandbox that runs them, and its limits."""
