"""The format on disk: how a dataset directory is written, opened, read and verified."""
