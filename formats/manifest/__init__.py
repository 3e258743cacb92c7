"""config.json of every kind of dataset: its types, its rules, reading and writing it."""
