"""Collate functions, which turn a list of samples into a padded batch, by task and modality."""
