"""Rows of tokens: windows, packed rows, documents and preferences as tensors."""
