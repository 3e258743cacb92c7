"""Encoders, which turn texts into vectors, and the probe that identifies an encoder."""
