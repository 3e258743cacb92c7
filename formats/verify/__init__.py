"""Verification of a dataset directory against its manifest, byte for byte."""
