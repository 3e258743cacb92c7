"""The offline stage: from raw records to a committed dataset directory."""
