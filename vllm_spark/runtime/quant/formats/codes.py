"""The two 4-bit code books, and codes in bytes: two per byte, the one of the even column in the low four bits."""

from __future__ import annotations

import functools

import torch

__all__ = [
    "E2M1_MAX",
    "NF4",
    "decode_e2m1",
    "decode_nf4",
    "e2m1_codes",
    "encode_e2m1",
    "encode_nf4",
    "nf4_codes",
    "pack",
]

# QLoRA (Dettmers et al., 2023), appendix E: quantiles of a normal distribution, zero among them.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
# OCP Microscaling Formats 1.0, section 5.3.3; bit 3 is the sign.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E2M1_MAX = 6.0
# Half-way between neighbours belongs to the even code: to the lower one where `right` of it is False.
_E2M1_BOUNDS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


@functools.cache
def _levels(book: tuple[float, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(book, dtype=torch.float32, device=device)


@functools.cache
def _nf4_bounds(device: torch.device) -> torch.Tensor:
    levels = _levels(NF4, device)
    return (levels[1:] + levels[:-1]) / 2


def nf4_codes(values: torch.Tensor) -> torch.Tensor:
    """The nearest NF4 code of each float32 value, ties to the lower one; uint8, one code per byte."""
    return torch.bucketize(values, _nf4_bounds(values.device), out_int32=True).to(torch.uint8)


def e2m1_codes(values: torch.Tensor) -> torch.Tensor:
    """The E2M1 code of each float32 value, ties to even, saturating, zero keeps its sign; uint8, one code per byte."""
    magnitude = values.abs()
    code = torch.zeros_like(values, dtype=torch.uint8)
    for bound, inclusive in _E2M1_BOUNDS:
        code += (magnitude >= bound) if inclusive else (magnitude > bound)
    return code | (torch.signbit(values).to(torch.uint8) << 3)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """One code per byte [..., K] into two per byte [..., K/2]."""
    return codes[..., ::2] | (codes[..., 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Two codes per byte [..., K/2] into one per byte [..., K]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def encode_nf4(values: torch.Tensor) -> torch.Tensor:
    """Packed NF4 codes of float32 values [..., K]."""
    return pack(nf4_codes(values))


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Packed E2M1 codes of float32 values [..., K]."""
    return pack(e2m1_codes(values))


def decode_nf4(packed: torch.Tensor) -> torch.Tensor:
    """float32 levels of packed NF4 codes."""
    return _levels(NF4, packed.device)[unpack(packed).int()]


def decode_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """float32 values of packed E2M1 codes."""
    return _levels(E2M1, packed.device)[unpack(packed).int()]
