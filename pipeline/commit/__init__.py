"""Committing: from finished units to a published dataset."""
