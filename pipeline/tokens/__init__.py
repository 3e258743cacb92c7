"""Builds of texts into shards of tokens. `chat` uses most of these modules, too."""
