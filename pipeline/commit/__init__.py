"""Checks of the output directory, and assembly of a dataset: shards, splits and provenance."""
