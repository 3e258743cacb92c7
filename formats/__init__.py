"""What is on disk: manifest, arrays, indexes, checksums and the commit protocol."""
