"""Reference rendering of single conversations, and the spans of the text that are trained on."""
