"""`kvtrail bypass-diff`: is the answer another one when nothing is reused?"""

import re
import sys
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from ..audit.checks.answers import Answer
from ..audit.checks.bypass import Made, run_bypass_diff
from ..audit.checks.bypass_verdict import Outcome
from ..audit.checks.bypass_words import tell_diff
from ..audit.checks.documents import diff_document
from ..audit.checks.endpoint import Endpoint
from ..audit.checks.forms import Bypass, Document, Form
from ..audit.checks.recording import Subject, record_diff
from ..audit.checks.target import EndpointTarget
from ..schemas.errors import ConfigError
from ..schemas.events import Tier
from .checking import (
    FORMS,
    GUILTY,
    INCONCLUSIVE,
    INTERRUPTED,
    api_key,
    as_document,
    endpoint_options,
    publishes,
    record,
    shown,
    value_of,
)
from .local.running import current_config

_FILE = click.Path(dir_okay=False, path_type=Path)
_LARGEST = 16 << 20
_SECRET = ("auth", "key", "token", "cookie", "secret")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
EXITS = {Outcome.NOT_IMPLICATED: 0, Outcome.IMPLICATED: GUILTY, Outcome.INCONCLUSIVE: INCONCLUSIVE}


@click.command(name="bypass-diff")
@click.argument("url")
@endpoint_options
@click.option("--request", "body", type=click.File("rb"), help="The request's JSON body as it was sent; - for stdin.")
@click.option("--model", default="", help="Without --request: the model's name.")
@click.option("--system", type=click.File("r"), help="Without --request: a file with the system prompt.")
@click.option("--question", default="", help="Without --request: the user's question.")
@click.option("--bypass", "bypass_name", default="", help="Which bypass. Default: the form's first.")
@click.option("--controls", default=3, show_default=True, type=click.IntRange(2, 20), help="Runs without reuse.")
@click.option("--reuses", default=2, show_default=True, type=click.IntRange(1, 20), help="Runs with reuse.")
@click.option("--warm", is_flag=True, help="Send it once before, to make an entry: tests restoring alone.")
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(1, 4096), help="Longest answer.")
@click.option("--block-size", default=0, type=click.IntRange(0), help="Tokens in a block of the engine's cache.")
@click.option("--deadline", default=300.0, show_default=True, help="Seconds for everything, waiting included.")
@click.option("--api-key-env", metavar="NAME", help="The variable that holds the key. Default: ENDPOINT_API_KEY.")
@click.option("--api-key-file", type=_FILE, help="The file that holds the key.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=SOURCE",
    help="Another header, repeatable. SOURCE: env:VARIABLE, file:PATH, or text:VALUE for what is no secret.",
)  # fmt: skip
@click.option(
    "--about", default="", metavar="REQUEST", help="The request id of the complaint: investigate shows it there."
)
@click.option("--key", default="", help="The entry's store key, where it is known.")
@click.option("--tier", type=click.Choice(["gpu", "host", "nvme", "shared"]), default="gpu", help="The entry's tier.")
@click.option(
    "--owner", default="", metavar="NODE", help="The node that holds the entry, where its tier is a node's own."
)
@click.option("--tenant", default="", help="The tenant whose request this is.")
def bypass_diff(
    url: str, form: str, ca_file: Path | None, timeout: float, as_json: bool, publish: bool | None, store: str,
    path: Path | None, body: Any, model: str, system: Any, question: str, bypass_name: str, controls: int, reuses: int,
    warm: bool, max_tokens: int, block_size: int, deadline: float, api_key_env: str | None, api_key_file: Path | None,
    headers: tuple[str, ...], about: str, key: str, tier: str, owner: str, tenant: str,
) -> None:  # fmt: skip
    """Ask the endpoint at URL the same with reuse and with a genuine bypass, at temperature 0, and compare.

    The bypass is the engine's own: a flag, a pool of its own (cache_salt), breakpoints left out; it counts only once
    the answer reports 0 cached tokens. Salt in the prompt is none: that would be another prompt. Runs without reuse are
    compared with each other first, and where log-probabilities are offered, numeric noise is told from a difference.

    Exit status: 0 the cache is not implicated, 1 it is, 3 inconclusive (and why), 2 an error.
    """
    wire = FORMS[form]
    config = current_config(path)
    request = _request(wire, body, model, system, question)
    chosen = _bypass(wire, bypass_name)
    with Endpoint(
        url, wire.path, purpose="bypass-diff", timeout_s=timeout, deadline_s=deadline, ca_file=ca_file,
        headers={**wire.headers(api_key(api_key_env, api_key_file)), **dict(map(_header, headers))},
    ) as endpoint:  # fmt: skip
        target = EndpointTarget(wire, endpoint.post, request, tokens=max_tokens, bypass=chosen)
        try:
            made = run_bypass_diff(
                target, controls=controls, reuses=reuses, warm=warm,
                tell=lambda words: click.echo(f"asking {words}", err=True) if not as_json else None,
            )  # fmt: skip
        except KeyboardInterrupt:  # click would end with 1, and that is a verdict here
            click.echo("stopped: no verdict", err=True)
            sys.exit(INTERRUPTED)
        authority, address = endpoint.authority, endpoint.url
    told = tell_diff(
        made, bypass=target.bypass, hidden=wire.hidden, declines=wire.declines, block=block_size
    )  # fmt: skip
    subject = Subject(
        request_id=about, key=key, store=store or authority, tier=cast(Tier, tier), owner=owner, tenant=tenant
    )
    recorded = "Not recorded."
    if publishes(config, publish):
        recorded = record(config, "kvtrail-bypass-diff", lambda publisher: record_diff(publisher, made, told, subject))
    if as_json:
        named = {"endpoint": address, "form": form, "bypass": target.bypass, "about": about, "key": key or _key(made)}
        click.echo(as_document({**diff_document(made, told, named), "recorded": recorded}))
    else:
        click.echo(shown(told, recorded))
    sys.exit(EXITS[made.diff.outcome])


def _header(word: str) -> tuple[str, str]:
    name, _, source = word.partition("=")
    if not _HEADER.fullmatch(name):
        raise ConfigError("is no header's name.", field="--header", remedy="Write NAME=env:VARIABLE.")
    secret = any(word in name.lower() for word in _SECRET)
    return name, value_of(source, "--header", secret=secret)


def _key(made: Made) -> str:
    answers: tuple[Answer, ...] = made.runs.reuse
    return next((answer.key for answer in answers if answer.key), "")


def _bypass(form: Form, name: str) -> Bypass | None:
    names = [one.name for one in form.bypasses]
    if not name:
        return None
    if name not in names:
        known = f"Choose of {', '.join(names)}." if names else "This form has none."
        raise ConfigError("is no bypass of this form.", field="--bypass", remedy=known)
    return form.bypasses[names.index(name)]


def _request(form: Form, body: Any, model: str, system: Any, question: str) -> Document:
    if body is None:
        if not question:
            raise click.UsageError("Give --request FILE, or --model and --question.")
        return form.plain(model, system.read() if system is not None else "", question)
    raw = body.read(_LARGEST + 1)
    try:
        request = msgspec.json.decode(raw) if len(raw) <= _LARGEST else None
    except (msgspec.DecodeError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise ConfigError("is no JSON object.", field="--request", remedy="Give the body of one request, as JSON.")
    return request
