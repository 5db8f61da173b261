"""The `kvtrail` command: a thin shell. Each command lives in a module of its own and is imported when it is used,
so that `kvtrail tour` costs no Faust, no ClickHouse and no torch."""

import importlib
import sys
from collections.abc import Sequence

import click

from .. import __version__
from ..schemas.errors import KvtrailError, MissingExtra
from .extras import EXTRAS, NEEDS, pip_install

COMMANDS: dict[str, tuple[str, str]] = {
    "tour": ("tour", "The incident from a recording of a real run, through the real judging core."),
    "demo": ("demo", "The incident, live: real model, real Kafka, real ClickHouse engine."),
    "up": ("up", "Run the local stack until stopped."),
    "judge": ("judge", "Judge recorded histories offline."),
    "rules": ("rules", "What is looked for, why it matters, and what to do about it."),
    "lint-key": ("lint_key", "Which dimensions a key expression covers, and which it only names."),
    "simulate": ("simulate", "Make the history of a believable fleet, with faults and an answer key."),
    "investigate": ("investigate", "Who was served what, where it came from, and who else was hit."),
    "bypass-diff": ("bypass_diff", "Is the answer another one when nothing is reused? Ask an endpoint both ways."),
    "probe": ("probe", "Check a running endpoint: does one tenant reach what another has cached?"),
    "findings": ("findings", "List findings and incidents."),
    "events": ("events", "Look at the event stream."),
    "coverage": ("coverage", "Which failures your sources can reveal, which not, and what to add."),
    "hit-rate": ("hit_rate", "Hit rates, from lookups as nodes counted them."),
    "facts": ("facts", "Tell what the fleet knows, or list what was told."),
    "epoch": ("epoch", "Put everything that was cached before now out of use."),
    "canary": ("canary", "Whose marker an answer shows."),
    "replay": ("replay", "Judge stored history again with today's rules, and show what differs."),
    "backfill": ("backfill", "Send recorded events to Kafka."),
    "dead-letter": ("dead_letter", "Look at refused input, and send it again once it can be read."),
    "config": ("config", "Check and print the configuration."),
    "init": ("init", "Create the topics and the schema, before any worker starts."),
    "detect": ("detect", "Run a detector worker."),
    "sink": ("sink", "Run the ClickHouse sink."),
    "resolve": ("resolve", "Run the resolver: who asked, for events that know only a request id."),
    "fleet": ("fleet", "Run the rules that compare several homes: key drift, missing parts, probing."),
    "notify": ("notify", "Tell webhooks and Alertmanagers of incidents, and of a silent pipeline."),
    "heartbeat": ("heartbeat", "Publish the known-bad events by which a silent pipeline is noticed."),
    "store": ("store", "Run the embedded ClickHouse engine behind its HTTP facade."),
    "serve": ("serve", "Serve the console and the HTTP API."),
    "node": ("node", "Serve a real small model with an NVMe cache of prefixes, on this machine."),
    "agent": ("agent", "Publish for all engines of this host, from a Unix socket."),
    "producers": ("producers", "Look after publishers: does publishing work from here?"),
    "alive": ("alive", "Health check of a worker: is it in its consumer group?"),
    "dashboards": ("dashboards", "Write or push the Grafana dashboards and alert rules."),
}
"""Command -> (module in this room, help). The module has a click command of the same name, `_` for `-`."""


class Lazy(click.Group):
    """A group that imports a command's module only when that command is run or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[name][0]}", __package__)
        command = getattr(module, name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvtrail")
def kvtrail() -> None:
    """The audit trail for KV and prefix caches in LLM inference fleets."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; an error of ours becomes one line on stderr and exit status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        kvtrail.main(args=words, prog_name="kvtrail")
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".")[0])
        if extra is not None and words:
            extra = NEEDS.get(words[0], extra)
        if extra is None:
            raise
        _fail(
            MissingExtra(
                f"this command needs {error.name}, which is not installed.",
                remedy=f"Run: {pip_install(extra)}",
            )
        )
    except KvtrailError as error:
        _fail(error)


def _fail(error: KvtrailError) -> None:
    click.echo(f"kvtrail: {error}", err=True)
    sys.exit(2)
