"""Loaders: from samples in an order to the batches of one rank, with a state to resume from."""
