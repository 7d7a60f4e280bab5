"""CUPTI as a source of records, through NVIDIA's package `cupti-python`: optional, and imported only on request.

Read in this order:

- `source`: start, ranges, stop. `obstacles`: reasons why CUPTI cannot be used here.
- `rows`: copies of records' values, which is all that a callback may do. `decoding`: rows as records.
- `names`: names of CUPTI's numbers.

Decoding was tested on the package's own record structures. CUPTI's own behaviour was taken from its headers, and tested
on a stand-in. Imports the records and `source.ProfilerSource`. Another kind of CUPTI's records is a row of
`rows.FIELDS`, a kind in `source._WANTED` and a loop in `decoding.decode`.
"""

from gpu_profile.kernels.sources.cupti.obstacles import hindrance
from gpu_profile.kernels.sources.cupti.source import CuptiSource

__all__ = ["CuptiSource", "hindrance"]
