"""`stub`: an endpoint on a real socket, healthy until told otherwise."""

from collections.abc import Iterator

import pytest

from .stub import Behaviour, Stub, serving


@pytest.fixture(scope="session")
def served() -> Iterator[Stub]:
    """One server for the session."""
    with serving() as stub:
        yield stub


@pytest.fixture
def stub(served: Stub) -> Stub:
    """The server, healthy, with nothing cached."""
    return served.become(Behaviour())
