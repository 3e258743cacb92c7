"""The offline stage: from raw records to a finished dataset directory."""
