"""Conversion between datasets of dataprep, directories of JASPER, and single files."""
