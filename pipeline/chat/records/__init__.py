"""Records of conversations, whatever shape they have, as messages."""
