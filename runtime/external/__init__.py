"""Loaders for foreign data: map-style and iterable datasets that dataprep did not build."""
