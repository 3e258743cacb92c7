"""Reading a dataset directory with numpy: splits, documents, arrays, maps and plain reads."""
