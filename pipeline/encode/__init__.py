"""Encoders: from texts to vectors, and the probe by which an encoder is recognized."""
