"""Datasets of conversations and preferences: rendered, masked, tokenized."""
