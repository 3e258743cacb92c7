"""The format on disk: manifest, arrays, indexes, checksums and the commit protocol."""
