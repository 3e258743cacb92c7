"""Builds of datasets of vectors (`dataprep build --kind embeddings`).

The vectors are given in files, or made by an encoder.
"""
