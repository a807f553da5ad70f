from __future__ import annotations

import pytest

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.stream.options import Options


def test_defaults_and_given_values() -> None:
    assert Options.parse({}) == Options()
    assert Options.parse({"staging_mb": 64, "direct": False}) == Options(staging_mb=64, direct=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"staging": 3}, "did you mean staging_mb"),
        ({"zzz": 3}, "keys are"),
        ({"staging_mb": "64"}, "whole number"),
        ({"staging_mb": True}, "whole number"),
        ({"staging_mb": 0}, "whole number"),
        ({"threads": -1}, "whole number"),
        ({"cache": 1}, "true or false"),
        ({"cache_gb": 1.5}, "whole number"),
    ],
)
def test_wrong_options_say_what_is_right(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options.parse(given)
