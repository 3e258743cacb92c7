"""Readers of inputs: files and tables become batches of records."""
