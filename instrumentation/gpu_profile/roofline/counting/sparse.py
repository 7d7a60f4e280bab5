"""Floating-point operations of sparse tensors: products with the stored elements. Pure.

| operation; a stored element that is 0 counts as any other | floating-point operations |
|---|---|
| sparse matrix times dense matrix, or the reverse | 2 · stored elements · columns (rows) of the dense one |
| sparse matrix times vector | 2 · stored elements |
| with a summand | + 1 per result, unless beta is 0 |
| sampled product of dense matrices | 2 · stored elements · length of the sum; + 1 each, unless beta is 0 |
| conversions | none |

These are the counts of sparse BLAS (Williams et al. 2009, SpMV); complex elements count four times as much. A product
of two sparse matrices has no formula: its count depends on where their elements are. Bytes are the stored elements
and their indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu_profile.roofline.counting.operands import OperatorCall
from gpu_profile.roofline.counting.products import Formula


def _product(left: str, right: str, *, summand: str | None = None) -> Formula:
    def flops(call: OperatorCall) -> int:
        a, b = call.operand(left), call.operand(right)
        if (a.nonzeros is None) == (b.nonzeros is None):
            raise LookupError("the places of the elements are data")
        if a.nonzeros is not None:
            count = 2 * a.nonzeros * (b.shape[-1] if b.ndim > 1 else 1)
        else:
            count = 2 * (b.nonzeros or 0) * a.shape[-2]
        added = 0
        if summand is not None and call.get("beta", 1) != 0:
            if call.operand(summand).nonzeros is not None:
                raise LookupError("the places of the elements are data")
            added = call.result.numel()
        return count * 4 + added * 2 if a.is_complex else count + added

    return flops


def _sampled(call: OperatorCall) -> int:
    sample, a = call.operand("self"), call.operand("mat1")
    if sample.nonzeros is None:
        raise LookupError("the sample is dense")
    count, added = 2 * sample.nonzeros * a.shape[-1], sample.nonzeros if call.get("beta", 1) != 0 else 0
    return count * 4 + added * 2 if a.is_complex else count + added


_FORMULAS: Final[tuple[tuple[str, Formula], ...]] = (
    ("mm bmm", _product("self", "mat2")),
    ("mv", _product("self", "vec")),
    ("addmm _sparse_addmm", _product("mat1", "mat2", summand="self")),
    ("addmv", _product("mat", "vec", summand="self")),
    ("sparse_sampled_addmm", _sampled),
    (
        """
        _to_dense to_dense sparse_mask clone _to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc
        to_sparse to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc copy_ zero_ _to_copy
        """,
        lambda _: 0,
    ),
)

#: Full name of an operation with a sparse argument or result -> its formula.
SPARSE: Final[Mapping[str, Formula]] = {f"aten.{name}": flops for names, flops in _FORMULAS for name in names.split()}
