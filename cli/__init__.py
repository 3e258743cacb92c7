"""The command line: argument handling and output, nothing else."""
