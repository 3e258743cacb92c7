"""Single files: `.npy`, `.safetensors`, index files, safe opening, paths, other layouts."""
