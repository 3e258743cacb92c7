"""Builds of conversations and preferences: records, templates, rendering, loss masks."""
