"""Reader of a dataset with numpy and the standard library alone: no dataprep, no torch.

python examples/numpy_reader.py shards train 0
"""

import json
import sys
from pathlib import Path

import numpy as np

path, split, document = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

config = json.loads((path / "config.json").read_bytes())
for shard in config["splits"][split]["shards"]:
    if 0 <= document < shard["documents"]:
        starts = np.load(path / shard["docs"], mmap_mode="r")
        ids = np.memmap(path / shard["tokens"], config["tokens"]["dtype"], "r")
        print(*ids[starts[document] : starts[document + 1]])
        sys.exit()
    document -= shard["documents"]
sys.exit(f"split {split} has no document {sys.argv[3]}; they are numbered from 0")
