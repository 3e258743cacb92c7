"""Reference renderer for single conversations, which also finds the spans of text to train on."""
