"""What one request to a checked endpoint gave, and the reasons for which it can give nothing."""

from enum import StrEnum

from msgspec import Struct

from ...schemas.errors import KvtrailError


class Step(Struct, frozen=True):
    """One generated token with its log-probability (nats), and the likeliest alternatives that were reported."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Answer(Struct, frozen=True, kw_only=True):
    """One answer. `token_ids`: only where the endpoint itself gave ids. `cached_tokens`: as reported; None where the
    endpoint says nothing of it, which is another fact than 0. `computed_tokens`: prompt positions for which the answer
    itself shows that they were computed. `prompt_ids`: the prompt's token ids as the endpoint saw them.

    `key`, `store`, `tier`, `owner`: the entry that was used, where the endpoint names it. `seconds`: from the request's
    first byte to the answer's last.
    """

    text: str
    token_ids: tuple[int, ...] | None = None
    steps: tuple[Step, ...] | None = None
    cached_tokens: int | None = None
    computed_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_ids: tuple[int, ...] | None = None
    model: str = ""
    fingerprint: str = ""
    finished: str = ""
    request_id: str = ""
    key: str = ""
    store: str = ""
    tier: str = ""
    owner: str = ""
    seconds: float = 0.0


class Trouble(StrEnum):
    """Why an endpoint gave no answer that could be compared."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    TLS = "tls"
    REDIRECTED = "redirected"
    UNAUTHORISED = "unauthorised"
    NOT_FOUND = "not_found"
    TEMPERATURE_REFUSED = "temperature_refused"
    BYPASS_REFUSED = "bypass_refused"
    REQUEST_REFUSED = "request_refused"
    RATE_LIMITED = "rate_limited"
    SERVER_FAILED = "server_failed"
    STREAMED = "streamed"
    TOO_LARGE = "too_large"
    NOT_JSON = "not_json"
    MALFORMED = "malformed"


class NoAnswer(KvtrailError):
    """The endpoint gave no answer; `trouble` says of which kind. The message holds nothing of what it sent."""

    code = "no_answer"

    def __init__(self, trouble: Trouble, message: str, *, remedy: str = "") -> None:
        super().__init__(message, field="endpoint", remedy=remedy)
        self.trouble = trouble


class Refused(NoAnswer):
    """The endpoint turned the request down; `said` is its own message in lower case, for finding out what about."""

    def __init__(self, message: str, said: str, *, remedy: str = "") -> None:
        super().__init__(Trouble.REQUEST_REFUSED, message, remedy=remedy)
        self.said = said
