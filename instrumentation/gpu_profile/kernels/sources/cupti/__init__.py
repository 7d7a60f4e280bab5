"""CUPTI as a source of records, through NVIDIA's package `cupti-python`: optional, and imported only when asked for.

Read in this order:

- `source`: start, ranges, stop. `obstacles`: why CUPTI cannot be used here.
- `rows`: what a callback may do, which is to copy values. `decoding`: rows as records.
- `names`: what CUPTI's numbers are called.

What is decoded here was tried on the package's own record structures; what CUPTI itself does was written down from its
headers, and tested on a stand-in. Imports the records and `source.Source`. Another kind of CUPTI's records is a row of
`rows.FIELDS`, a kind in `source._WANTED` and a loop in `decoding.decode`.
"""

from gpu_profile.kernels.sources.cupti.obstacles import hindrance
from gpu_profile.kernels.sources.cupti.source import CuptiSource

__all__ = ["CuptiSource", "hindrance"]
