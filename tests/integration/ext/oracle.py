"""What E2M1 codes must be, worked out from the definition alone: the nearest of eight magnitudes, ties to even."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

# Case T01: value -> code, as NVIDIA's cuda_fp4.h of CUDA 13.0.88 gives on a CPU.
TABLE = {
    "0": 0x0, "-0": 0x8, "1.4e-45": 0x0, "-1.4e-45": 0x8, "0.2499999": 0x0, "0.25": 0x0, "0.25000003": 0x1,
    "-0.25": 0x8, "0.5": 0x1, "0.74999988": 0x1, "0.75": 0x2, "1": 0x2, "1.2499999": 0x2, "1.25": 0x2,
    "1.2500001": 0x3, "1.5": 0x3, "1.7499999": 0x3, "1.75": 0x4, "2": 0x4, "2.5": 0x4, "2.5000002": 0x5, "3": 0x5,
    "3.4999998": 0x5, "3.5": 0x6, "4": 0x6, "4.9999995": 0x6, "5": 0x6, "5.0000005": 0x7, "-1.75": 0xC,
    "-2.5": 0xC, "-3.5": 0xE, "-5": 0xE, "6": 0x7, "6.0000005": 0x7, "7": 0x7, "-7": 0xF, "448": 0x7,
    "3.4e38": 0x7, "inf": 0x7, "-inf": 0xF, "nan": 0x7, "-nan": 0x7,
}  # fmt: skip


def codes(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The code of each value: by distance in float64, even codes first, so that a tie stays with them."""
    with np.errstate(invalid="ignore"):  # what numpy says of a signalling NaN
        a = np.abs(x.astype(np.float64))
    best, code = a.copy(), np.zeros(x.shape, np.uint8)
    for index in (2, 4, 6, 1, 3, 5, 7):
        distance = np.abs(a - MAGNITUDES[index])
        nearer = distance < best
        np.copyto(best, distance, where=nearer)
        np.copyto(code, np.uint8(index), where=nearer)
    code[a > MAGNITUDES[-1]] = 7  # saturates; infinity is at the same distance of all
    return np.where(np.isnan(x), np.uint8(7), code | (np.signbit(x).astype(np.uint8) << 3))


def packed(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The codes of x [..., K] as bytes [..., K/2], the even index in the low four bits."""
    code = codes(x)
    return np.asarray(code[..., 0::2] | (code[..., 1::2] << 4), np.uint8)
