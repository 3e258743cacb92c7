"""Loaders: batches of one rank from samples in an order, with a state that lets a run resume."""
