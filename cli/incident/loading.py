"""The model, loaded in the background while the stack starts; and what must be installed for either."""

import importlib.util
import sys
import threading
from typing import TYPE_CHECKING

from ...schemas.errors import MissingExtra
from ..extras import pip_install

if TYPE_CHECKING:
    from ...cache_node.model import LanguageModel

NEEDED = {
    "node": ("torch", "transformers", "gguf", "accelerate", "xxhash"),
    "streams": ("faust",),
    "local": ("chdb", "clickhouse_connect"),
    "audit": ("starlette", "uvicorn", "jinja2"),
}
"""Extra -> the modules by which we know that it is installed."""


def require_everything() -> None:
    """Raises `MissingExtra` naming every extra that a live run needs and this installation lacks, or `ModelMissing`."""
    lacking = [extra for extra, names in NEEDED.items() if not all(map(_installed, names))]
    if lacking:
        raise MissingExtra(
            f"a live run needs the extra{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}.",
            remedy=f"Run: {pip_install(','.join(lacking))}, or try `kvtrail tour`, which needs none.",
        )
    from ...cache_node.model import model_file

    model_file()


def _installed(name: str) -> bool:
    # A module that is loaded is asked first: faust puts another object in its own place, and that one has no spec.
    return name in sys.modules or importlib.util.find_spec(name) is not None


class Loading:
    """Starts to load the model; `result` waits for it."""

    def __init__(self) -> None:
        self._model: LanguageModel | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kvtrail-model", daemon=True)
        self._thread.start()

    def result(self) -> "LanguageModel":
        """The model. Raises what loading raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._model is not None
        return self._model

    def _run(self) -> None:
        try:
            from ...cache_node.model import load_model

            self._model = load_model()
        except BaseException as error:
            self._error = error
