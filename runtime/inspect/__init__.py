"""Inspection: where a batch came from, whether it is sound, what loading costs."""
