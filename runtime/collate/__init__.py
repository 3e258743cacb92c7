"""Collate functions, which turn lists of texts, images or sounds into padded batches."""
