"""`dataprep build`, one command for each kind of dataset."""
