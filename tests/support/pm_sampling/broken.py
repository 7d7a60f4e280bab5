"""A sampler that breaks off in the middle of a line."""

import json
import sys

print(json.dumps({"device": "GPU-none", "chip": None}), flush=True)
sys.stdin.readline()
print("[[1, 2, 3], [4,", end="", flush=True)
