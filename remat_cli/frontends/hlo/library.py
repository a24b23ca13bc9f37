"""FLOPs of transforms, factorisations and selections: XLA's own operations, and calls of LAPACK, cuSOLVER and cuBLAS.

Of an m x n matrix, with k = min(m, n) and l = max(m, n):

=============================  =======================================  ==========================================
routine                        FLOPs                                    source
=============================  =======================================  ==========================================
FFT of N complex numbers       5 N log2 N; of real ones 2.5 N log2 N    Cooley and Tukey 1965: N/2 log2 N
                                                                        butterflies of one complex product (6) and
                                                                        two complex sums (4); also FFTW's benchmark
Cholesky                       n^3 / 3                                  LAPACK Working Note 41, appendix C
LU                             l k^2 - k^3 / 3                          the same
QR, as reflectors              2 k^2 (l - k / 3)                        the same
m x n factor Q of r reflectors 4 m n r - 2 (m + n) r^2 + 4/3 r^3        the same
triangular solve               n^2 for each right-hand side             the same
SVD, values only               4 l k^2 - 4/3 k^3                        Golub and Van Loan, Matrix Computations,
                                                                        4th edition, figure 8.6.1
SVD, k vectors of both sides   14 l k^2 + 8 k^3                         the same
SVD, all vectors               4 l^2 k + 8 l k^2 + 9 k^3                the same
symmetric eigenvalues          4/3 n^3; with vectors 9 n^3              the same, section 8.3
sorting n numbers              n log2 n comparisons                     any sort by comparisons
largest r of n numbers         n log2 r comparisons                     a heap of r numbers
=============================  =======================================  ==========================================

XLA's own figure for an FFT, 8 N times the product (not the sum) of the logarithms of the axes, counts four
multiply-adds per number and level, also for real numbers (``HloCostAnalysis::HandleFft``).
"""

import math
import re
from collections.abc import Callable

from remat_cli.frontends.hlo.read import Instruction
from remat_cli.frontends.hlo.shapes import Array, leaves

_MODE = re.compile(r"\bmode = (\d+)")
"""What LAPACK is to return, as a letter's number: N for values only, S for as many vectors as values, A for all."""
_ROUTINE = re.compile(
    r"(?:^|[_$])(?:[sdcz]|he|sy)?(potrf|cholesky|getrf|geqrf|orgqr|ungqr|trsm|gesdd|gesvd|gesvdj|gesvdp|syevd|syevj|heevd)"
    r"(?:_|$)",
    re.IGNORECASE,
)


def library_flops(instruction: Instruction, operands: list[Instruction]) -> int | None:
    """FLOPs of an operation or of a call of a library; None if it is none of those above.

    Raises:
        ValueError, IndexError, KeyError: If its operands or attributes do not fit.
    """
    opcode = instruction.opcode
    if opcode in _OPCODES:
        return _OPCODES[opcode](instruction, operands)
    target = instruction.attributes.get("custom_call_target", "").strip('"')
    if target == "TopK":
        return _topk(instruction, operands)
    routine = _ROUTINE.search(target)
    return None if routine is None else _ROUTINES[routine[1].lower()](instruction, operands)


def _matrices(operands: list[Instruction], which: int = 0) -> tuple[int, int, int]:
    """How many matrices an operand holds, and their rows and columns."""
    array = _array(operands, which)
    if len(array.sizes) < 2:
        raise ValueError("its operand is no matrix")
    return math.prod(array.sizes[:-2]), array.sizes[-2], array.sizes[-1]


def _array(operands: list[Instruction], which: int = 0) -> Array:
    return next(leaves(operands[which].shape))


def _fft(instruction: Instruction, operands: list[Instruction]) -> int:
    """The real side of a transform between real and complex numbers has all of them."""
    kind = instruction.attributes["fft_type"]
    axes = [int(axis) for axis in re.findall(r"\d+", instruction.attributes["fft_length"])]
    numbers = (next(leaves(instruction.shape)) if kind == "IRFFT" else _array(operands)).elements
    halves = 1 if kind in {"RFFT", "IRFFT"} else 2
    return math.ceil(2.5 * halves * numbers * sum(math.log2(axis) for axis in axes if axis > 1))


def _cholesky(instruction: Instruction, operands: list[Instruction]) -> int:
    count, n, _ = _matrices(operands)
    return count * n**3 // 3


def _lu(instruction: Instruction, operands: list[Instruction]) -> int:
    count, short, long = _sorted_sides(operands)
    return count * (long * short**2 - short**3 // 3)


def _qr(instruction: Instruction, operands: list[Instruction]) -> int:
    count, short, long = _sorted_sides(operands)
    return count * (2 * long * short**2 - 2 * short**3 // 3)


def _q_of_reflectors(instruction: Instruction, operands: list[Instruction]) -> int:
    count, m, n = _matrices(operands)
    r = _array(operands, 1).sizes[-1]
    return count * (4 * m * n * r - 2 * (m + n) * r**2 + 4 * r**3 // 3)


def _triangular_solve(instruction: Instruction, operands: list[Instruction]) -> int:
    return _array(operands, 1).elements * _matrices(operands)[2]


def _svd(instruction: Instruction, operands: list[Instruction]) -> int:
    count, short, long = _sorted_sides(operands)
    match _mode(instruction):
        case "N":
            return count * (4 * long * short**2 - 4 * short**3 // 3)
        case "A":
            return count * (4 * long**2 * short + 8 * long * short**2 + 9 * short**3)
        case _:
            return count * (14 * long * short**2 + 8 * short**3)


def _symmetric_eigenvalues(instruction: Instruction, operands: list[Instruction]) -> int:
    count, n, _ = _matrices(operands)
    return count * (4 * n**3 // 3 if _mode(instruction) == "N" else 9 * n**3)


def _sorted_sides(operands: list[Instruction]) -> tuple[int, int, int]:
    """The number of matrices, and their shorter and their longer side."""
    count, m, n = _matrices(operands)
    return count, min(m, n), max(m, n)


def _mode(instruction: Instruction) -> str:
    """LAPACK's letter for what is returned, which cuSOLVER spells out; S where the call does not say."""
    config = instruction.attributes.get("backend_config", "")
    if letter := _MODE.search(config):
        return chr(int(letter[1]))
    if "compute_uv = false" in config:
        return "N"
    return "A" if "full_matrices = true" in config else "S"


def _sort(instruction: Instruction, operands: list[Instruction]) -> int:
    keys = _array(operands)
    axis = int(instruction.attributes["dimensions"].strip("{}"))
    return keys.elements * _levels(keys.sizes[axis])


def _topk(instruction: Instruction, operands: list[Instruction]) -> int:
    return _array(operands).elements * _levels(next(leaves(instruction.shape)).sizes[-1])


def _levels(count: int) -> int:
    """Comparisons that find a number's place among ``count``."""
    return math.ceil(math.log2(max(2, count)))


_Rule = Callable[[Instruction, list[Instruction]], int]
_OPCODES: dict[str, _Rule] = {
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "sort": _sort,
    "topk": _topk,
}
_ROUTINES: dict[str, _Rule] = {
    **dict.fromkeys(("potrf", "cholesky"), _cholesky),
    "getrf": _lu,
    "geqrf": _qr,
    **dict.fromkeys(("orgqr", "ungqr"), _q_of_reflectors),
    "trsm": _triangular_solve,
    **dict.fromkeys(("gesdd", "gesvd", "gesvdj", "gesvdp"), _svd),
    **dict.fromkeys(("syevd", "syevj", "heevd"), _symmetric_eigenvalues),
}
