"""Reading of conversations from records of any known shape."""
