"""Mixtures: one order over several datasets, in exact proportions."""
