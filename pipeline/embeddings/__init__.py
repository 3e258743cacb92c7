"""Datasets of embeddings: from vectors in files, or from texts and an encoder."""
