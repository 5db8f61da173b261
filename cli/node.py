"""`kvtrail node`: the cache node behind HTTP, on this machine."""

import logging
import signal
import sys
import tempfile
from pathlib import Path

import click
import uvicorn

from ..audit.console.gate import is_loopback
from ..audit.console.server import bind, url
from ..cache_node.entry_store import EntryStore
from ..cache_node.keys import KeyFunction, name_and_model, prefix_key
from ..cache_node.model import load_model
from ..cache_node.node import CacheNode
from ..cache_node.node_canary import NodeCanary
from ..cache_node.serving import NodeService
from ..cache_node.spot_check import SpotCheckSettings
from ..cache_node.spot_checker import SpotChecker
from ..producers.canary import Canary
from ..producers.canary_keys import keys_of
from ..producers.publisher import LifecyclePublisher
from ..schemas.config import Config
from ..schemas.errors import ConfigError, StackError
from ..schemas.reserved import PREFIX, is_reserved
from .local.running import current_config
from .screen import say, step

KEYS: dict[str, KeyFunction] = {"fingerprint": prefix_key, "name": name_and_model}
_FOLDER = click.Path(file_okay=False, path_type=Path)
STOP_S = 10


@click.command()
@click.option("--name", default="cache-node", show_default=True, help="The node's name in the trail.")
@click.option("--directory", type=_FOLDER, help="Where entries are kept. Default: node/NAME in the state directory.")
@click.option(
    "--keyed-by", type=click.Choice(list(KEYS)), default="fingerprint", show_default=True,
    help="fingerprint: everything that matters; name: template and model by name, which is the mistake to look for.",
)  # fmt: skip
@click.option("--ttl", default=300.0, show_default=True, help="Seconds that an entry lives.")
@click.option("--capacity-mb", default=4096, show_default=True, type=click.IntRange(1), help="Room for entries.")
@click.option(
    "--spot-check", default=0.01, show_default=True, type=click.FloatRange(0, 1), help="Share of hits computed again."
)
@click.option(
    "--canary/--no-canary", default=None, help="Put canaries into prompts. Default: where canary.keys is set."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Loopback only: it asks nobody for a key.")
@click.option("--port", default=8790, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--config", "path", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file.")
def node(
    name: str, directory: Path | None, keyed_by: str, ttl: float, capacity_mb: int, spot_check: float,
    canary: bool | None, host: str, port: int, path: Path | None,
) -> None:  # fmt: skip
    """Serve a real small model with an NVMe cache of prefixes: POST /v1/chat/completions, until told to stop.

    Who asks stands in the headers X-Tenant and X-Template. Every operation of the cache is published.
    """
    if not is_loopback(host):
        raise ConfigError(
            "is no loopback address, and a node asks nobody for a key.", field="--host", remedy="Serve on 127.0.0.1."
        )
    if not name or is_reserved(name):
        raise ConfigError(
            f"begins with {PREFIX!r}: such nodes are kvtrail's own." if name else "is empty.", field="--name",
            remedy="Choose another name.",
        )  # fmt: skip
    config = current_config(path)
    folder = directory or config.local.home() / "node" / name
    _check_folder(folder, "--directory" if directory else "local.directory")
    try:
        listener = bind(host, port)
    except StackError as error:
        raise StackError(
            f"{host} port {port} cannot be listened on ({getattr(error.__cause__, 'strerror', error)}).",
            field="--port", remedy="Choose a free one, or 0 for any.",
        ) from error  # fmt: skip
    address = url(host, int(listener.getsockname()[1]))
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    marker = canary_of(config, canary)
    with step("SmolLM2-135M-Instruct, on the CPU"):
        model = load_model()
    publisher = LifecyclePublisher.to_kafka(name, config.kafka, config.publisher)
    try:
        with EntryStore(folder, publisher, capacity_bytes=capacity_mb << 20) as store:
            marks = NodeCanary(marker, publisher, store.name) if marker is not None else None
            checker = SpotChecker(model, publisher, store.name, SpotCheckSettings(share=spot_check))
            served = CacheNode(model, store, publisher, KEYS[keyed_by], ttl_s=ttl, canary=marks, spot_checker=checker)
            app = NodeService(served, name=name, store=store.name, model=model.name).app()
            for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again when it has stopped in order
                signal.signal(number, lambda *_: None)
            say(f"ready: node {name} at {address}, keyed by {keyed_by}")
            uvicorn.Server(
                uvicorn.Config(
                    app, log_config=None, access_log=False, lifespan="off", server_header=False,
                    timeout_graceful_shutdown=STOP_S,
                )
            ).run(sockets=[listener])  # fmt: skip
            checker.close()
            served.report_lookups()
    finally:
        if not publisher.close():
            say("some events could not be sent", style="red")
            sys.exit(1)


def _check_folder(folder: Path, field: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror}).", field=field, remedy="Name a folder you can write."
        ) from error


def canary_of(config: Config, wanted: bool | None) -> Canary | None:
    """The canary, as wanted, else where keys are configured. Raises `ConfigError` for one without good keys."""
    if not (config.canary.keys.get_secret_value() if wanted is None else wanted):
        return None
    return Canary(keys_of(config.canary), config.canary.tenants)
