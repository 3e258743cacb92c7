"""The command `dataprep order`, and what it computes: documents of steps, steps of documents."""
