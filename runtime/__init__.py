"""The online stage: from a dataset directory to seeded batches for training."""
