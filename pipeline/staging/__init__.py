"""Staging: the hidden directory in which a build grows, its lock and its checkpoints."""
