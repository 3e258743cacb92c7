"""Tracing of chat templates on symbolic text: one specialized renderer a structure."""
