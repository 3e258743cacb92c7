"""The command `dataprep order`: which documents are in a step, and which steps see a document."""
