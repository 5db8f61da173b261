"""`kvtrail probe isolation`: does one tenant reach what another one has cached?"""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal, cast

import click

from ..audit.asking import parse_span
from ..audit.checks.documents import probe_document
from ..audit.checks.endpoint import Clock, Endpoint
from ..audit.checks.forms import Form
from ..audit.checks.isolation import Probed, Prober, Tenant
from ..audit.checks.isolation_verdict import Isolation, Policy
from ..audit.checks.isolation_words import tell_probe
from ..audit.checks.recording import Subject, record_probe
from ..schemas.config import Config
from ..schemas.errors import ConfigError, KvtrailError
from .checking import (
    FORMS,
    GUILTY,
    INCONCLUSIVE,
    as_document,
    endpoint_options,
    publishes,
    record,
    shown,
    value_of,
    variable,
)
from .local.running import current_config

EXITS = {Isolation.HELD: 0, Isolation.ALLOWED: 0, Isolation.BROKEN: GUILTY, Isolation.INCONCLUSIVE: INCONCLUSIVE}
By = Literal["api-key", "header", "cache-salt"]
"""How an endpoint tells tenants apart."""
SHORTEST_S = 10
NODE = "kvtrail-probe"


@click.group()
def probe() -> None:
    """Check a running endpoint, safely in production."""


@probe.command()
@click.argument("url")
@endpoint_options
@click.option("--model", default="", help="The model's name.")
@click.option(
    "--by", type=click.Choice(["api-key", "header", "cache-salt"]), required=True, help="What tells tenants apart."
)
@click.option(
    "--tenant", "tenants", multiple=True, required=True, metavar="NAME=SOURCE",
    help="Twice: the owner of the prefix, then the other. SOURCE: env:VARIABLE, file:PATH, or text:VALUE for what is "
    "no secret.",
)  # fmt: skip
@click.option("--header", default="X-Tenant", show_default=True, help="With --by header: which one.")
@click.option("--api-key-env", metavar="NAME", help="With --by header or cache-salt: the variable that holds the key.")
@click.option(
    "--policy", type=click.Choice(["partitioned", "shared"]), default="partitioned", show_default=True,
    help="What is meant to be: with shared, a hit is no finding.",
)  # fmt: skip
@click.option("--pairs", default=5, show_default=True, type=click.IntRange(1, 16), help="Pairs, four requests each.")
@click.option("--pause", default=1.0, show_default=True, type=click.FloatRange(0), help="Seconds between two requests.")
@click.option("--prefix-words", default=0, type=click.IntRange(0, 20_000), help="Default: what the form's caches need.")
@click.option("--every", metavar="SPAN", help="Again and again, as 10m, until stopped.")
def isolation(
    url: str, form: str, ca_file: Path | None, timeout: float, as_json: bool, publish: bool | None, store: str,
    path: Path | None, model: str, by: str, tenants: tuple[str, ...], header: str, api_key_env: str | None, policy: str,
    pairs: int, pause: float, prefix_words: int, every: str | None,
) -> None:  # fmt: skip
    """Ask the endpoint at URL as two tenants: the owner's repeat must hit, the other's identical prefix must not.

    Each prompt begins with random words, so that no customer's entry is met; each answer is one token; requests are
    marked (user agent kvtrail, user kvtrail-probe). Reported cached tokens decide, latencies are second evidence.

    Exit status: 0 as policy has it, 1 a tenant reached another's entry, 3 inconclusive (and why), 2 an error. With
    --every, the last probe's that came to its end or found something.
    """
    wire = FORMS[form]
    span = _span(every)
    if len(tenants) != 2:
        raise click.UsageError("Give --tenant exactly twice: the owner, then the other.")
    owner, other = (_tenant(wire, word, cast(By, by), header, api_key_env) for word in tenants)
    if owner.name == other.name or (owner.headers, owner.salt) == (other.headers, other.salt):
        raise ConfigError("are the same twice.", field="--tenant", remedy="Name two tenants that differ.")
    config = current_config(path)
    with stopping() as clock:
        status = INCONCLUSIVE
        while True:
            with Endpoint(
                url, wire.path, headers={}, purpose="isolation-probe", timeout_s=timeout,
                deadline_s=4 * pairs * (timeout + pause), ca_file=ca_file, clock=clock,
            ) as endpoint:  # fmt: skip
                prober = Prober(
                    wire, endpoint.post, owner, other, model=model, clock=clock, pause_s=pause, words=prefix_words
                )
                probed = prober.run(pairs, cast(Policy, policy))
                subject = Subject(store=store or endpoint.authority)
            if span and probed.stopped and probed.probe.isolation is not Isolation.BROKEN:
                break
            status = EXITS[probed.probe.isolation]
            _tell(config, wire, probed, subject, other, endpoint.url, publish=publish, as_json=as_json)
            if not span or clock.wait(span):
                break
    sys.exit(status)


def _tell(
    config: Config, form: Form, probed: Probed, subject: Subject, other: Tenant, address: str, *,
    publish: bool | None, as_json: bool,
) -> None:  # fmt: skip
    told = tell_probe(probed.probe, trouble=probed.trouble, hidden=form.hidden)
    recorded = "Not recorded."
    if publishes(config, publish):
        recorded = record(
            config,
            f"{NODE}/{subject.store}",
            lambda publisher: record_probe(publisher, probed.probe, told, subject, other),
        )
    if as_json:
        about = {"endpoint": address, "form": form.name, "other": other.name}
        click.echo(as_document({**probe_document(probed.probe, told, about, probed.pairs), "recorded": recorded}))
    else:
        click.echo(shown(told, recorded))


class StoppableClock(Clock):
    """A clock whose waits end when somebody asks to stop.

    `stop` may be called from a signal handler, which runs between any two steps of a wait: an Event's lock would be
    waited for by the very thread that holds it.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._asked, self._ask = os.pipe()

    def stop(self) -> None:
        """End the wait under way and all coming ones."""
        self.stopped = True
        os.write(self._ask, b".")

    def wait(self, seconds: float) -> bool:
        """True once a stop was asked for."""
        return self.stopped or bool(select.select([self._asked], [], [], max(0.0, seconds))[0])

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._asked)
        os.close(self._ask)


@contextmanager
def stopping() -> Iterator[StoppableClock]:
    """Inside, the first SIGINT or SIGTERM lets the request under way end, and then everything; the second one ends it
    at once. Outside the main thread signals stay as they are."""
    with closing(StoppableClock()) as clock:
        if threading.current_thread() is not threading.main_thread():
            yield clock
            return

        def on_signal(number: int, frame: FrameType | None) -> None:
            if clock.stopped:
                os._exit(128 + number)
            clock.stop()

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield clock
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _span(text: str | None) -> int:
    if text is None:
        return 0
    try:
        span = parse_span(text, "--every")
    except KvtrailError as error:
        raise ConfigError(error.message, field="--every", remedy=error.remedy) from error
    if span < SHORTEST_S:
        raise ConfigError(f"is less than {SHORTEST_S} s.", field="--every", remedy="A probe is no load test.")
    return span


def _tenant(form: Form, word: str, by: By, header: str, key_variable: str | None) -> Tenant:
    name, _, source = word.partition("=")
    value = value_of(source, "--tenant", secret=by == "api-key")
    if not name or not value:
        raise ConfigError("has no name or no value.", field="--tenant", remedy="Write NAME=env:VARIABLE.")
    common = form.headers("" if key_variable is None else variable(key_variable, "--api-key-env"))
    if by == "api-key":
        return Tenant(name=name, headers=form.headers(value))
    if by == "header":
        return Tenant(name=name, headers={**common, header: value})
    form.salted({}, value)  # an endpoint without pools is refused before anything is asked
    return Tenant(name=name, headers=common, salt=value)
