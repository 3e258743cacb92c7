"""The command `dataprep order`, which connects training steps with the documents in them."""
