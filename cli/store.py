"""`kvtrail store`: the embedded ClickHouse engine behind its HTTP facade."""

import logging
from pathlib import Path

import click

from ..schemas.config import load_config


@click.command(short_help="Run the embedded ClickHouse engine behind its HTTP facade.")
@click.option(
    "--directory", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where it keeps its data."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8123, show_default=True, help="0 takes a free port.")
def store(directory: Path, port: int) -> None:
    """Run the embedded ClickHouse engine behind its HTTP facade, until stopped.

    It listens on 127.0.0.1 and writes its port to DIRECTORY/port as soon as it answers. Where clickhouse.password is
    configured, requests must carry it.
    """
    from ..store.serving import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(directory, port, password=load_config().clickhouse.password)
