"""Comparisons of what differs in nothing known are made by a short way: it says what the long one says."""

from hypothesis import given
from hypothesis import strategies as st
from kvtrail.judging.comparison import Comparator
from kvtrail.judging.interning import Identities
from kvtrail.schemas.dimensions import ENTRY_KINDS
from kvtrail.schemas.identity import DIMENSIONS, Identity
from pytest import MonkeyPatch

HEX = "0123456789abcdef"
VALUES = {
    name: [None, "", HEX, HEX[::-1], f"xxh3:{HEX}"] if dimension.form == "digest" else [None, "", "a", "b", "activated"]
    for name, dimension in DIMENSIONS.items()
}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Identity, Identity]:
    """A creator, and a requester that differs from it in few dimensions."""
    values = {name: draw(st.sampled_from(options)) for name, options in VALUES.items() if name != "tenant_id"}
    other = dict(values)
    for name in draw(st.lists(st.sampled_from(sorted(values)), max_size=3)):
        other[name] = draw(st.sampled_from(VALUES[name]))
    tenant = draw(st.sampled_from(["t1", "t2"]))
    return Identity(tenant_id="t1", **values), Identity(tenant_id=tenant, **other)


@given(pairs(), st.sampled_from(sorted(ENTRY_KINDS)), st.sampled_from(["exact", "semantic"]))
def test_the_short_way_says_what_the_long_one_says(pair: tuple[Identity, Identity], kind: str, mode: str) -> None:
    short, long = Comparator(Identities()), Comparator(Identities())
    with MonkeyPatch.context() as patch:
        patch.setattr("kvtrail.judging.comparison._same_content", lambda *_: False)
        expected = long.compare(long.identities.intern(pair[0]), long.identities.intern(pair[1]), kind, mode, 100)
    found = short.compare(short.identities.intern(pair[0]), short.identities.intern(pair[1]), kind, mode, 100)
    assert found == expected
