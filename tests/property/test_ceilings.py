"""Ceilings survive being written, and no file whatever makes reading them fail."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.roofline.ceilings.cache import SCHEMA, load, path_of, store
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings, Level
from gpu_profile.roofline.precision import Precision

texts = st.text(max_size=10)
rates = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
found = st.builds(Ceiling, rates, st.sampled_from(["measured", "datasheet", "formula"]), texts)
levels = st.builds(Level, texts, st.none() | st.integers(0, 2**62), found)
keys = st.dictionaries(texts, texts, max_size=4)
ceilings = st.builds(
    Ceilings,
    machine=texts,
    key=keys,
    compute=st.dictionaries(st.sampled_from(Precision), found),
    levels=st.lists(levels, max_size=3).map(tuple),
    launch_s=st.none() | rates,
    cold_launch_s=st.none() | rates,
    fault_s=st.none() | rates,
    missing=st.dictionaries(texts, texts, max_size=3),
    calibrated_ns=st.integers(0, 2**63),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
KEY = {"device": "a device"}


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patched:
        place = tmp_path_factory.mktemp("cache")
        patched.setenv("GPU_PROFILE_CACHE", str(place))
        yield place


@given(ceilings)
def test_ceilings_are_the_same_after_json(each: Ceilings) -> None:
    assert Ceilings.from_json(json.loads(json.dumps(each.to_json()))) == each


@given(ceilings)
def test_whatever_is_stored_is_loaded(each: Ceilings) -> None:
    assert store(each) == ""
    assert load(each.key) == each


def read(content: bytes) -> Ceilings | None:
    path = path_of(KEY)
    assert path is not None
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return load(KEY)


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_fail(content: bytes) -> None:
    assert read(content) is None


@given(st.data())
def test_a_file_with_one_value_replaced_gives_ceilings_or_nothing(data: st.DataObject) -> None:
    each = data.draw(ceilings)
    tree: Any = {"schema": SCHEMA, "ceilings": each.to_json() | {"key": dict(KEY)}}
    place = tree
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(values)
            break
        place = place[key]
    found = read(json.dumps(tree).encode())
    assert found is None or dict(found.key) == KEY


@given(ceilings, st.integers(0, 400))
def test_a_file_that_was_cut_short_is_nothing(each: Ceilings, missing: int) -> None:
    whole = json.dumps({"schema": SCHEMA, "ceilings": each.to_json() | {"key": dict(KEY)}}).encode()
    assert read(whole[: max(0, len(whole) - 1 - missing)]) is None
