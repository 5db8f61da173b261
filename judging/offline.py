"""A recorded history through the same core, without broker or store."""

from collections.abc import Iterable

from ..schemas.config import JudgingConfig
from ..schemas.envelope import Batch
from ..schemas.events import Event
from ..schemas.facts import Fact
from ..schemas.findings import Finding


def judge_history(
    records: Iterable[Fact | Event | Batch], settings: JudgingConfig | None = None, deployment: str = "default"
) -> list[Finding]:
    """Final revisions of every finding, in the order in which their subjects first appeared.

    `records` stand in append order: a fact applies to what follows it.
    """
    raise NotImplementedError
