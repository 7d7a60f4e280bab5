"""How much a call has to do: floating-point operations by closed forms, bytes by the tensors that are touched.

Read in this order:

- `known`: what the rest of the room asks for; it loads PyTorch only where there is something to count.
- `dry_run`: PyTorch's own functions and modules (`builtins` knows them) are counted beside their run, on copies without
  data (`fake_tensors`). What was counted is kept by `signature`.
- `counter`: what the user's functions dispatch is counted while they run. `undispatched` notices what passes by,
  `compiled` tells what is known of it.
- `recorder`: what was dispatched, one row for each distinct operation (an `operands.Call`), and the memory that all of
  it touched (`footprint`).
- `totals`: FLOPs by formula, bytes by `traffic`, added up to a `Work`.
- `registry`: the formula of an operation: the user's, else that of `products` or `arithmetic`.

`operands`, `traffic`, `products`, `arithmetic`, `footprint` and `registry` need no PyTorch. A new formula is a row in
the table of `products` (matrix products, in the precision of their factors) or of `arithmetic` (all else), with its
line in that module's docstring; what reads only a part of an argument gets a row in `traffic` besides.
"""

from gpu_profile.roofline.counting.registry import register_formula

__all__ = ["register_formula"]
