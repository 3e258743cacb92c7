"""Verification: whether a directory is, byte for byte, what was built."""
