"""The places of texts in bytes are the ones that the regular expression of each text has."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gpu_profile_exporter.sidecar.searching import RareText, RareTexts

few_bytes = st.text("ab=", max_size=30).map(str.encode)


@given(few_bytes, st.lists(st.sampled_from([("ab", 0), ("a=b", 0), ("a=b", 1), ("abab", 2)]), min_size=1, max_size=3))
def test_places_are_all_places_of_each_text(data: bytes, searched: list[tuple[str, int]]) -> None:
    texts = RareTexts(*(RareText(text.encode(), pair) for text, pair in searched))
    expected = [[each.start() for each in re.finditer(b"(?=%b)" % one.text, data)] for one in texts.texts]
    assert [places.tolist() for places in texts.places(data)] == expected
