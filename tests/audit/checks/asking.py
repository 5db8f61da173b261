"""How tests ask a stub: the library's own way, with little patience and no waiting."""

from typing import Any

from kvtrail.audit.checks.anthropic_form import ANTHROPIC
from kvtrail.audit.checks.bypass import Made, run_bypass_diff
from kvtrail.audit.checks.endpoint import Clock, Endpoint
from kvtrail.audit.checks.forms import Document, Form
from kvtrail.audit.checks.isolation import Probed, Prober, Tenant
from kvtrail.audit.checks.isolation_verdict import Policy
from kvtrail.audit.checks.openai_form import NODE, OPENAI, PLAIN, SGLANG, VLLM
from kvtrail.audit.checks.sglang_form import GENERATE
from kvtrail.audit.checks.target import EndpointTarget

from .stub import Stub

FORMS: dict[str, Form] = {form.name: form for form in (VLLM, SGLANG, GENERATE, OPENAI, PLAIN, ANTHROPIC, NODE)}
QUESTION = "How many days do I have to return an item?"


def system(days: int) -> str:
    """A system prompt of four blocks; those of two tenants begin alike and are equally long."""
    return f"You are a support assistant. Returns are accepted within {days} days. " + "Be kind and brief. " * 14


class Patience(Clock):
    """Waits are over at once, and have taken as long as they should."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def now(self) -> float:
        return super().now() + sum(self.waited)

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return False


def endpoint(stub: Stub, form: Form, key: str = "contoso-key", **options: Any) -> Endpoint:
    """A way to the stub."""
    given: dict[str, Any] = {"timeout_s": 20.0, "deadline_s": 30.0, "clock": Patience(), **options}
    return Endpoint(stub.url, form.path, headers=form.headers(key), purpose="test", **given)


def request(form: Form, days: int = 14, question: str = QUESTION) -> Document:
    """The request that is complained about."""
    return form.plain("stub-7b", system(days), question)


def somebody_asked(stub: Stub, form: Form, days: int, key: str = "contoso-key") -> None:
    """An ordinary request before the check: it leaves the entry that the check will meet."""
    with endpoint(stub, form, key) as there:
        body = request(form, days, "And in another country?")
        EndpointTarget(form, there.post, body, tokens=64, exact=False).ask(reuse=True)
    stub.seen.clear()


def diff(stub: Stub, form: Form, **options: Any) -> Made:
    """A bypass diff of that request."""
    bypass = options.pop("bypass", None)
    reach = {name: options.pop(name) for name in ("timeout_s", "deadline_s", "ca_file", "clock") if name in options}
    with endpoint(stub, form, **reach) as there:
        target = EndpointTarget(form, there.post, request(form), tokens=64, bypass=bypass)
        return run_bypass_diff(target, **options)


def probe(
    stub: Stub,
    form: Form,
    *,
    policy: Policy = "partitioned",
    pairs: int = 2,
    clock: Clock | None = None,
    **reach: Any,
) -> Probed:
    """An isolation probe by two tenants with keys of their own."""
    tenants = [Tenant(name=name, headers=form.headers(f"{name}-key")) for name in ("northwind", "contoso")]
    clock = clock or Patience()
    with Endpoint(
        stub.url, form.path, headers={}, purpose="test", clock=clock, **{"timeout_s": 20.0, **reach}
    ) as there:
        return Prober(form, there.post, *tenants, model="stub-7b", clock=clock, words=64).run(pairs, policy)
