"""Loaders: batches of one rank from samples in an order, with a state to resume from."""
