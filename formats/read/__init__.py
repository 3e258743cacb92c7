"""Reading of datasets with numpy: splits, documents, arrays, maps and plain reads."""
