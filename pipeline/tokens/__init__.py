"""Builds of texts: tokens."""
