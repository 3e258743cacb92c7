"""Single files: `.npy`, `.safetensors`, index files, safe opening, paths, foreign layouts."""
