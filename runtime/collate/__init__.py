"""Collate functions: a list of samples in, a padded batch out, for each task and modality."""
