"""ATen operators that fail, or read outside their memory, if numbers in their arguments are out of range."""

INDEXING = {
    # operator: (argument that is indexed, argument with indices, dimension that is indexed)
    "aten.embedding.default": (0, 1, 0),
    "aten._embedding_bag.default": (0, 1, 0),
    "aten.nll_loss_forward.default": (0, 1, -1),
    "aten.nll_loss2d_forward.default": (0, 1, 1),
}
"""Operators that read integers as indices."""
INDEXING_ALONG = (
    "aten.index_select.default",
    "aten.gather.default",
    "aten.scatter.src",
    "aten.scatter.value",
    "aten.scatter_add.default",
    "aten.scatter_reduce.two",
    "aten.index_add.default",
    "aten.index_copy.default",
)
"""Operators whose arguments are the indexed tensor, the dimension, and the indices."""
INDEXING_EACH = ("aten.index.Tensor", "aten.index_put.default", "aten._unsafe_index.Tensor")
"""Operators whose arguments are the indexed tensor, and a list of indices by dimension."""
INDEXING_FLAT = ("aten.take.default", "aten.put.default")
"""Operators whose arguments are the indexed tensor, taken as one-dimensional, and the indices."""
OFFSETS = {"aten._embedding_bag.default": 2}
"""Operators that read integers as offsets, which start at 0 and never decrease: only zeros are always valid."""
GROWING = {
    *("add", "addmm", "bitwise_left_shift", "bitwise_not", "bmm", "cumprod", "cumsum", "dot", "mm", "mul", "mv", "neg"),
    *("pow", "prod", "rsub", "scatter_add", "sub", "sum"),
}
"""Operators whose integers may leave the range of those in their arguments."""
SHARES = {
    "aten.binary_cross_entropy.default": (0, 1),
    "aten.binary_cross_entropy_backward.default": (1, 2),
    "aten.bernoulli.default": (0,),
    "aten.multinomial.default": (0,),
}
"""Operators that refuse numbers outside of [0, 1] in these arguments."""
MASKS = {"aten.masked_scatter.default": (1,), "aten.masked_scatter_backward.default": (1,)}
"""Operators that fail if these masks choose too many elements: only one that chooses none is always valid."""
