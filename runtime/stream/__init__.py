"""Streams: iterable datasets that read whole blocks in sequence."""
