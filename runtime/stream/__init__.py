"""Streams: sequential reads of whole blocks as an iterable dataset."""
