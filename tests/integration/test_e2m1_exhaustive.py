"""The E2M1 encoder over all 2^32 floats: `make test-exhaustive`, some minutes on two cores.

The definition is checked for every float that is not negative; every other one must have the same code with its
sign, and NaN of either sign the code of +6.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.integration.ext import oracle

if TYPE_CHECKING:
    from types import ModuleType

    import numpy.typing as npt

_CHUNK = 1 << 20  # values at a time: what the oracle needs of them stays in a core's cache
_SIGN = 1 << 31
_INFINITY = 0x7F80_0000


def _floats(start: int) -> npt.NDArray[np.float32]:
    return np.arange(start, start + _CHUNK, dtype=np.int64).astype(np.uint32).view(np.float32)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_every_float(extension: ModuleType) -> None:
    def wrong(start: int) -> int:
        positive, negative = _floats(start), _floats(start | _SIGN)
        want = oracle.packed(positive)
        got = extension.e2m1_pack(torch.from_numpy(positive)).numpy()
        mirrored = extension.e2m1_pack(torch.from_numpy(negative)).numpy()
        # From infinity on there are NaN, whose sign goes.
        want_mirrored = oracle.packed(negative) if start >= _INFINITY else np.bitwise_or(want, np.uint8(0x88))
        return int(np.count_nonzero(got != want) + np.count_nonzero(mirrored != want_mirrored))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # ours are the threads
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            starts = range(0, _SIGN, _CHUNK)
            bad = [(start, count) for start, count in zip(starts, pool.map(wrong, starts), strict=True) if count]
    finally:
        torch.set_num_threads(threads)
    assert not bad
