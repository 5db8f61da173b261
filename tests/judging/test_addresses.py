"""An end that can mean only one instance takes a short way, and leaves the ledger as the long one does."""

import pytest
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.ledger.addresses import Addresses
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.envelope import Batch

from .random_histories import odd_history


def state(batches: list[Batch]) -> bytes:
    judge = Judge(JudgingConfig(), "d", FactBook())
    for index, batch in enumerate(batches):
        judge.batch(batch, index)
    return judge.dump()


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_the_short_way_to_end_an_instance_agrees_with_the_long_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    histories = [odd_history(one) for one in range(seed, seed + 20)]
    short = [state(batches) for batches in histories]
    monkeypatch.setattr(Addresses, "ends_the_latest", lambda *_: False)
    assert [state(batches) for batches in histories] == short
