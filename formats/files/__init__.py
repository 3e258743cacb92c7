"""Single files: `.npy`, index files, safe opening, paths, other systems' layouts."""
