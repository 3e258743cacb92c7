"""Builds of texts into shards of tokens; `chat` shares most of its modules."""
