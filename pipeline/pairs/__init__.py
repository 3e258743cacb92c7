"""`dataprep build --kind pairs`: datasets of pairs, built from tables of questions and sources."""
