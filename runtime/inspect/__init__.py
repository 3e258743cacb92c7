"""Inspection: the origin of a batch, checks of the first batch, and the cost of loading."""
