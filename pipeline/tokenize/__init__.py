"""Tokenizing: tokenizer files, engines, special tokens, and checks that engines agree."""
