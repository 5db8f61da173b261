"""What the command line and the console ask for, and the answers' shapes; `stored.py` answers from ClickHouse."""

from typing import Literal, Protocol

from msgspec import Struct

from ..schemas.dimensions import Severity
from ..schemas.errors import KvtrailError
from ..schemas.findings import Finding
from .history import History, Question
from .incidents import Incident


class NothingFound(KvtrailError):
    """What was asked about is not in the store; the message says what was searched."""

    code = "nothing_found"


class AmbiguousQuestion(KvtrailError):
    """The text begins more than one key or finding; `candidates` are the questions it can mean."""

    code = "ambiguous"

    def __init__(self, message: str, candidates: tuple[Question, ...], *, more: bool = False, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.candidates = candidates
        self.more = more


class Wanted(Struct, frozen=True, kw_only=True):
    """Which findings: events since `since_us` (0: all), at least this severe, of this cause or incident. `names`:
    incidents with the requests, keys and findings that they are made of."""

    since_us: int = 0
    severity: Severity = Severity.INFO
    cause: str = ""
    cause_id: str = ""
    status: Literal["open", "retracted", ""] = "open"
    limit: int = 200
    names: bool = False


class Health(Struct, frozen=True, kw_only=True):
    """How fresh and how complete the store is. Times are microseconds since the epoch, 0 where there is nothing.

    `newest_event_us` is by the producers' clocks, `newest_append_us` by Kafka's, `newest_insert_us` the store's.
    """

    server_version: str = ""
    events: int = 0
    hits: int = 0
    newest_event_us: int = 0
    newest_append_us: int = 0
    newest_insert_us: int = 0
    findings_open: int = 0
    findings_retracted: int = 0
    newest_finding_us: int = 0
    dead_letters: int = 0
    newest_dead_letter_us: int = 0
    dead_letter_codes: tuple[tuple[str, int], ...] = ()
    facts: int = 0


class Archive(Protocol):
    """The read side. Every method may raise a `StoreError`."""

    def look_up(self, text: str) -> Question:
        """What `text` names: a request id, a finding id or its beginning, a key or its beginning.

        Raises `NothingFound` or `AmbiguousQuestion`.
        """

    def investigate(self, question: Question) -> History:
        """The history that answers the question. Raises `NothingFound` or `AmbiguousQuestion`."""

    def findings(self, wanted: Wanted) -> list[Finding]:
        """The latest revision of each finding, loudest and then newest first."""

    def incidents(self, wanted: Wanted) -> list[Incident]:
        """The open findings, folded by root cause."""

    def health(self) -> Health:
        """Counts and ages of what is stored."""

    def check(self) -> None:
        """Raise a `StoreError` if the store cannot be read."""
