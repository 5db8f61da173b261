"""`kvtrail dashboards`: write, check and push what Grafana shows."""

import sys
import time
from pathlib import Path

import click
import yaml

from ..dashboards import generate, lint, provision, verify
from ..dashboards.grafana import Grafana
from ..dashboards.integrity import CONSOLE, RULES
from ..dashboards.macros import Window
from ..dashboards.preview import preview as draw
from ..dashboards.queries import QUERIES
from ..schemas.config import load_config
from ..schemas.errors import ConfigError
from ..store.client import connect

_HERE = Path(generate.__file__).parent.parent


@click.group()
def dashboards() -> None:
    """Write, check or push the Grafana dashboards and alert rules."""


@dashboards.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=generate.GENERATED)
def write(directory: Path) -> None:
    """Write dashboards and provisioning files below DIRECTORY (default: the project's own)."""
    changed = generate.write(directory)
    for path in changed:
        click.echo(f"wrote {path}")
    click.echo(f"{len(generate.files())} files, {len(changed)} changed, in {directory}")


@dashboards.command()
@click.option("--run", "on_engine", is_flag=True, help="Also run every query on the configured ClickHouse.")
@click.option("--hours", default=6, show_default=True, type=click.IntRange(1, 24 * 366), help="Time range for --run.")
def check(on_engine: bool, hours: int) -> None:
    """Lint the dashboards, compare the generated files, and (with --run) run every query. Exit status 1: problems."""
    boards = generate.dashboards()
    problems = [f"{name}: {problem}" for name, board in boards.items() for problem in lint.lint_dashboard(board)]
    alerting = yaml.safe_load(generate.files()["provisioning/alerting/kvtrail.yaml"])
    runbooks = _HERE / "docs" / "runbooks"
    problems += lint.lint_rules(alerting, boards.values(), runbooks if runbooks.is_dir() else None)
    if generate.GENERATED.is_dir():
        problems += [f"{name}: run `kvtrail dashboards write`" for name in generate.stale(generate.GENERATED)]
    if on_engine:
        now = int(time.time())
        window = Window(start_s=now - hours * 3600, end_s=now, variables={"tenant": ()})
        with connect(load_config().clickhouse) as client:
            problems += verify.problems(client, window)
    for problem in problems:
        click.echo(problem, err=True)
    ran = f", {len(QUERIES)} queries ran" if on_engine else ""
    click.echo(f"{len(boards)} dashboard, {len(RULES)} alert rules{ran}: {len(problems)} problems")
    sys.exit(1 if problems else 0)


@dashboards.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--hours", default=1, show_default=True, type=click.IntRange(1, 24 * 366), help="Time range.")
@click.option("--console", default=CONSOLE, show_default=True, help="Where the links lead.")
def preview(file: Path, hours: int, console: str) -> None:
    """Draw the Integrity dashboard into FILE (HTML) from the configured ClickHouse: a look-alike, no Grafana needed."""
    now = int(time.time())
    window = Window(start_s=now - hours * 3600, end_s=now + 1, interval_s=max(60, hours * 36), variables={"tenant": ()})
    with connect(load_config().clickhouse) as client:
        page = draw(generate.dashboards()["integrity.json"], client, window, console)
    file.write_text(page, encoding="utf-8")
    click.echo(f"wrote {file}")


@dashboards.command()
@click.option("--url", required=True, help="Grafana's address, e.g. https://grafana.example.org.")
@click.option(
    "--token-file",
    required=True,
    type=click.File("r"),
    help="File with a service account token (role Admin); - is stdin.",
)
@click.option("--runbooks", required=True, help="Address under which docs/runbooks can be read; alerts link there.")
@click.option("--no-datasource", is_flag=True, help="Leave the data source alone.")
@click.option("--clickhouse-url", help="ClickHouse as Grafana reaches it (default: the configured address).")
@click.option("--plain-http", is_flag=True, help="Send the token unencrypted to a host that is not this one.")
@click.option("--dry-run", is_flag=True, help="Read only, and say what would be done.")
def push(
    url: str, token_file: click.utils.LazyFile, runbooks: str, no_datasource: bool, clickhouse_url: str | None,
    plain_http: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Push folder, data source, dashboards and alert rules to a Grafana, each only where it differs.

    The data source uses the configured ClickHouse user: give one that may only read.
    """
    try:
        token = token_file.read()
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror}).", field="token-file", remedy="Check path and rights."
        ) from error
    source = None
    if not no_datasource:
        config = load_config().clickhouse
        if clickhouse_url is not None:
            config = config.model_copy(update={"url": clickhouse_url})
        source = provision.datasource(config)
    grafana = Grafana(url, token, plain_http=plain_http)
    for step in provision.push(grafana, source=source, runbooks=runbooks, dry_run=dry_run):
        verb = f"would {step.verb}" if dry_run and step.verb != "keep" else step.verb
        click.echo(f"{verb:13} {step.what} {step.name}")
