"""`kvtrail store`: the engine and its facade as one process that starts, says where it is, and stops cleanly."""

import logging
import os
import select
import signal
from pathlib import Path
from types import FrameType

from pydantic import SecretStr

from ..schemas.errors import StackError
from .embedded import Engine
from .facade import Facade

log = logging.getLogger("kvtrail.store")

DRAIN_S = 20.0


def serve(directory: Path, port: int = 0, *, password: SecretStr | None = None) -> None:
    """Serve the engine on `directory` until SIGTERM or SIGINT; call it from the main thread.

    When it answers, the port stands in `<directory>/port`, written at once; the file goes when it stops. Raises
    `StackError` for a directory or port that cannot be used. Does not return where a statement outlasted the stop:
    the process then ends with status 1, which to the store is the same as a crash, and crashes lose nothing.
    """
    asked, ask = (
        os.pipe()
    )  # not an Event: its lock would be waited for by the thread that a signal interrupts holding it
    directory = directory.absolute()
    engine = Engine(directory)
    port_file = directory / "port"
    port_file.unlink(missing_ok=True)
    try:
        facade = Facade(engine, port, password=password)
    except OSError as error:
        engine.close(DRAIN_S)
        raise StackError(
            f"cannot be listened on ({error.strerror}).",
            field=f"port {port}",
            remedy="Stop what uses it, or take port 0.",
        ) from error

    def stop(number: int, frame: FrameType | None) -> None:
        os.write(ask, b".")

    # After the engine has started: it installs handlers of its own.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    facade.start()
    written = port_file.with_suffix(".new")
    written.write_text(f"{facade.port}\n")
    written.replace(port_file)
    log.info("ready: store on 127.0.0.1:%d", facade.port)
    select.select([asked], [], [])
    log.info("stopping")
    port_file.unlink(missing_ok=True)
    facade.stop()
    if not engine.close(DRAIN_S):
        log.warning("a statement outlasted the stop; leaving it to recovery")
        logging.shutdown()
        os._exit(1)
