"""Mixtures: one order over several datasets, in proportion to their weights."""
