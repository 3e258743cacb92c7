"""Builds of conversations and preferences: reading records, rendering templates, loss masks."""
