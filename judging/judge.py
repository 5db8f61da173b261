"""The judge of one partition: lifecycle events in, finding revisions out."""

from ..schemas.config import JudgingConfig
from ..schemas.envelope import Batch
from ..schemas.findings import Finding
from .factbook import FactBook


class Judge:
    """Folds one partition's records into a ledger and judges them. Pure: no clock, no randomness, no I/O."""

    def __init__(self, settings: JudgingConfig, deployment: str, facts: FactBook) -> None:
        self.settings, self.deployment, self.facts = settings, deployment, facts

    def batch(self, batch: Batch, append_us: int) -> list[Finding]:
        """Judge one record, appended at `append_us`. New finding revisions, in order."""
        raise NotImplementedError

    def dump(self) -> bytes:
        """The exact state: `load` continues with the same future findings."""
        raise NotImplementedError

    @classmethod
    def load(cls, raw: bytes, settings: JudgingConfig, deployment: str, facts: FactBook) -> "Judge":
        """A judge that continues from `dump`."""
        raise NotImplementedError

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Counts for metrics: events, duplicates, hits, live entries, coverage per dimension."""
        raise NotImplementedError
