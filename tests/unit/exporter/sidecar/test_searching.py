"""The places of a text in bytes are the ones that the regular expression of the text has."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gpu_profile_exporter.sidecar.searching import RareText

few_bytes = st.text("ab=", max_size=30).map(str.encode)


@given(few_bytes, st.sampled_from([("ab", 0), ("a=b", 0), ("a=b", 1), ("abab", 2)]))
def test_places_are_all_places(data: bytes, searched: tuple[str, int]) -> None:
    text = RareText(searched[0].encode(), searched[1])
    expected = [each.start() for each in re.finditer(b"(?=%b)" % text.text, data)]
    assert text.places(data).tolist() == expected
    assert text.is_in(data) == (text.text in data)
