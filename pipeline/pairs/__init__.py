"""`dataprep build --kind pairs`: from tables of questions and sources to a dataset of pairs."""
