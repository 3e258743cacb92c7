"""Builds of texts into shards of tokens. The package `chat` also uses most of these modules."""
