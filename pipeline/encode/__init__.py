"""Encoders, which make vectors of texts, and the probe that identifies an encoder."""
