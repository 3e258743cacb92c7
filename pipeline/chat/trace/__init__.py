"""Rendering by specialization: the output of a template for all records of one structure."""
