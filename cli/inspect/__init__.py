"""The command `dataprep inspect`, for every kind of dataset."""
