"""Staging: the hidden directory of an unfinished build, with its lock and its checkpoints."""
