"""The series that we ship, on the release that it is for."""

import pytest

from vllm_spark.cli.main import main


def test_series_keeps_its_rules(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["series", "lint"])
    assert status == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_guard_is_red_without_its_patch(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["series", "guards"])
    said = capsys.readouterr()
    assert status == 0, said.out + said.err
