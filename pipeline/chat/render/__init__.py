"""Rendering of conversations, one by one, and the spans of the text that are trained on."""
