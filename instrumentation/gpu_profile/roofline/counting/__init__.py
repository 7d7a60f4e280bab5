"""Counts the work of a call: floating-point operations by closed formulas, bytes from the tensors that it touches.

Read in this order:

- `known`: the entry points for the rest of `roofline`. Loads PyTorch only if there is something to count.
- `dry_run`: counts PyTorch's own functions and modules without running them, on copies without data (`fake_tensors`).
  `builtins` recognises these callables. The counts are cached by `signature`.
- `counter`: counts the operations of the user's functions while they run. `undispatched` detects work that PyTorch's
  dispatcher does not see; `compiled` finds the work of compiled callables.
- `recorder`: the log of dispatched operations, one row for each distinct one (an `operands.OperatorCall`), with the
  memory that they touched (`footprint`).
- `totals`: adds up FLOPs by formula, and bytes by `traffic`, to a `Work`.
- `registry`: the formula of an operation: the user's, else that of `products`, `decompositions` or `arithmetic`; with
  sparse tensors that of `sparse`.

Only `dry_run`, `fake_tensors`, `builtins`, `counter`, `compiled` and `recorder` need PyTorch. A new formula is a row in
the table of `products` (matrix products, in the precision of their factors), `decompositions` (linear algebra),
`sparse`, or `arithmetic` (all others), with its line in that module's docstring. An operation that reads only a part
of an argument also needs a row in `traffic`.
"""

from gpu_profile.roofline.counting.registry import register_formula

__all__ = ["register_formula"]
