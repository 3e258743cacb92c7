"""Builds of pair datasets (`dataprep build --kind pairs`) from tables of questions and sources."""
