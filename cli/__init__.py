"""The command line: it parses arguments and prints results, and does nothing else."""
