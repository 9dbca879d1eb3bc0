"""A torch of another minor version is refused in one sentence that says what to type."""

import pytest

from ciranda import _version_gate


@pytest.mark.parametrize("found", ["2.15.0", "2.15.1", "2.15.0+cu132", "2.15.0a0+git1234"])
def test_same_minor_version_passes(found: str) -> None:
    _version_gate.check("2.15.0", found)


@pytest.mark.parametrize("found", ["2.14.1", "2.16.0+cpu", "3.15.0", "2.1.5"])
def test_other_minor_version_is_refused_in_one_sentence(found: str) -> None:
    with pytest.raises(ImportError) as caught:
        _version_gate.check("2.15.0", found)
    text = str(caught.value)
    assert "built for torch 2.15.0 but torch " + found in text
    assert "pip install" in text
    assert "--no-build-isolation" in text
    assert '"torch==2.15.*"' in text
    assert "\n" not in text


def test_a_missing_library_is_named_with_a_remedy() -> None:
    missing = "libhiredis.so.0.14: cannot open shared object file: No such file or directory"
    text = str(_version_gate.explain_missing_library(ImportError(missing)))
    assert text.startswith(f"ciranda was built with a library that this machine lacks ({missing})")
    assert "libgloo0" in text
    assert "-C cmake.define.CIRANDA_GLOO=OFF" in text
    assert "\n" not in text


def test_another_reason_is_left_as_it_is() -> None:
    error = ImportError("undefined symbol: _ZN3c10")
    assert _version_gate.explain_missing_library(error) is error
