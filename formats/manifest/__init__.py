"""The file config.json of every kind of dataset: types, rules, reading and writing."""
