"""Rendering conversations: the text, and the spans of it that are trained on."""
