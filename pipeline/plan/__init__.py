"""Planning: the units of a build, its splits, its tokenizer, and what it will take."""
