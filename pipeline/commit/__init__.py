"""Checks of the output directory, and the shards, splits and provenance of a dataset."""
