"""Tokenizing: tokenizer files, engines, special tokens, and proof that they agree."""
