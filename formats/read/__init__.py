"""Classes that read datasets with numpy: splits, documents and arrays, with or without maps."""
