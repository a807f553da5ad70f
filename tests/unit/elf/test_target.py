import pytest

from vllm_spark.distro.elf.target import Capability, Form, Suffix, Support, Target
from vllm_spark.errors import ConfigError

GB10 = Capability(12, 1)
H100 = Capability(9, 0)
NATIVE, JIT, ABSENT = Support.NATIVE, Support.JIT, Support.ABSENT


@pytest.mark.parametrize(
    ("number", "suffix", "device", "cubin", "ptx"),
    [
        (120, "", "12.1", NATIVE, JIT),
        (121, "", "12.1", NATIVE, JIT),
        (121, "", "12.0", ABSENT, ABSENT),
        (120, "f", "12.1", NATIVE, JIT),
        (121, "f", "12.1", NATIVE, JIT),
        (121, "f", "12.0", ABSENT, ABSENT),
        (120, "a", "12.1", ABSENT, ABSENT),
        (121, "a", "12.1", NATIVE, JIT),
        (121, "a", "12.0", ABSENT, ABSENT),
        (80, "", "12.1", ABSENT, JIT),
        (90, "", "12.1", ABSENT, JIT),
        (90, "a", "12.1", ABSENT, ABSENT),
        (100, "f", "12.1", ABSENT, ABSENT),
        (110, "", "12.1", ABSENT, JIT),
        (90, "a", "9.0", NATIVE, JIT),
        (80, "", "9.0", ABSENT, JIT),
        (120, "", "9.0", ABSENT, ABSENT),
        (80, "", "8.6", NATIVE, JIT),
        (80, "", "8.9", NATIVE, JIT),
        (87, "", "8.9", ABSENT, JIT),  # 8.7 is an embedded part
        (80, "", "8.7", ABSENT, JIT),
        (87, "", "8.7", NATIVE, JIT),
        (100, "f", "10.3", NATIVE, JIT),
        (100, "f", "10.1", ABSENT, ABSENT),
        (75, "", "8.0", ABSENT, JIT),
    ],
)
def test_who_runs_what(number: int, suffix: str, device: str, cubin: Support, ptx: Support) -> None:
    target = Target(number, Suffix(suffix))
    assert target.runs_on(Capability.parse(device), Form.CUBIN) is cubin
    assert target.runs_on(Capability.parse(device), Form.PTX) is ptx


@pytest.mark.parametrize("number", [80, 90, 121])
def test_unknown_form_is_never_dead(number: int) -> None:
    assert Target(number).runs_on(GB10, Form.OTHER) is Support.UNKNOWN


@pytest.mark.parametrize("text", ["12", "12.10", "sm_121", "", "a.b", "12.1a", "-1.0"])
def test_malformed_capability(text: str) -> None:
    with pytest.raises(ConfigError, match="not a compute capability"):
        Capability.parse(text)


def test_names() -> None:
    assert str(Target(120, Suffix.FAMILY)) == "120f"
    assert Target(90).capability == H100
    assert str(Capability.parse("12.1")) == "12.1"
