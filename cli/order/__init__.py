"""`dataprep order`: from steps to documents and back."""
