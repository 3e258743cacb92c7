"""The command `dataprep build`, with a module for each kind of dataset."""
