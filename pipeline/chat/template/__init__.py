"""Chat templates: where their text comes from, the sandbox that runs them, and its limits."""
