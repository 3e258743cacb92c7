"""`dataprep inspect`, for each kind of dataset."""
