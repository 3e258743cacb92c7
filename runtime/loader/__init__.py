"""Loaders, which make the batches of one rank from samples in an order and can resume."""
