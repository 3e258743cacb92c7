"""The layouts of others: read, checked, converted both ways; and a dataset as a single file."""
