"""Reading inputs: from files and tables to batches of records."""
