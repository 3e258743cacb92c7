"""Collation: lists of samples to padded batches, for each task and modality."""
