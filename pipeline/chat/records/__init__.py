"""Records of conversations in any known shape, read as messages."""
