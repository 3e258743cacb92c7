"""Reference rendering of single conversations, with the spans of the text that are trained on."""
