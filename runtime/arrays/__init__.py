"""Rows of embeddings, and pairs of embeddings, as tensors."""
