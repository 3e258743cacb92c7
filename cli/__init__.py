"""Command line: argument handling and output, nothing else."""
