"""What an alias serves: the digest of the weights behind a name, asked of whoever knows.

A resolver is any function from an alias to `Served`. `FolderAliases` looks into folders; `EndpointAliases` asks a
running endpoint where its weights lie. None of them takes a name for an answer.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schemas.digests import is_digest
from ..schemas.errors import InvalidField, NameInDigestPlace
from .file_digests import FileDigests
from .weights import weights_digest

TIMEOUT_S = 10.0
_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Served:
    """An alias, what it resolves to by name, and the digest of the weights by content."""

    alias: str
    resolved_model: str
    weights_digest: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer elsewhere is none: the headers, a key among them, would go there."""

    def redirect_request(self, *args: Any, **named: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)
Resolver = Callable[[str], Served]


def resolve_alias(alias: str, resolver: Resolver) -> Served:
    """What the alias serves now. Raises `NameInDigestPlace` where the resolver knows a name only, and whatever it
    raises itself."""
    served = resolver(alias)
    if not is_digest(served.weights_digest):
        raise NameInDigestPlace(
            "the alias resolves to a name, not to the digest of what is served.", field="weights_digest",
            remedy="Resolve it where the weights can be read: FolderAliases with their folder.",
        )  # fmt: skip
    return served


class FolderAliases:
    """Aliases of weights in folders or files: alias -> path."""

    def __init__(
        self, paths: Mapping[str, Path], digests: FileDigests | None = None, *, revision: str = "main"
    ) -> None:
        self._paths, self._digests, self._revision = dict(paths), digests or FileDigests(), revision

    def __call__(self, alias: str) -> Served:
        """Raises `InvalidField` for an unknown alias and for weights that cannot be read."""
        path = self._paths.get(alias)
        if path is None:
            raise InvalidField("is no alias that is known here.", field="alias", remedy="Say where its weights lie.")
        return Served(alias, path.name, weights_digest(path, self._digests, revision=self._revision))


class EndpointAliases:
    """Aliases of a running endpoint, as `/v1/models` lists them (`root`: vLLM), or `/get_model_info` (`model_path`:
    SGLang). The endpoint tells where the weights lie; this process reads them there. `roots` maps paths as the
    endpoint has them to paths here (a container's mount). `headers`: for an endpoint that asks who is there."""

    def __init__(
        self, url: str, digests: FileDigests | None = None, *, roots: Mapping[str, Path] | None = None,
        headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S, revision: str = "main",
    ) -> None:  # fmt: skip
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise InvalidField("is no HTTP address.", field="url", remedy="Write http://host:port.")
        self._url, self._digests = url.rstrip("/").removesuffix("/v1"), digests or FileDigests()
        self._roots, self._headers = dict(roots or {}), dict(headers or {})
        self._timeout_s, self._revision = timeout_s, revision

    def __call__(self, alias: str) -> Served:
        """Raises `InvalidField` where the endpoint does not answer or does not serve the alias, and
        `NameInDigestPlace` where it tells a name that is no path this process can read."""
        listed = self._get("/v1/models").get("data")
        model = next((one for one in listed if isinstance(one, dict) and one.get("id") == alias), None) if (
            isinstance(listed, list)
        ) else None  # fmt: skip
        if model is None:
            raise InvalidField("is not served by the endpoint.", field="alias", remedy="See its /v1/models.")
        root = model.get("root")
        path = self._here(root)
        if path is None:
            root = self._get("/get_model_info", missing_ok=True).get("model_path")
            path = self._here(root)
        if path is None:
            raise NameInDigestPlace(
                "the endpoint tells a name, not where the weights lie.", field="weights_digest",
                remedy="Map its path to one here (roots), or use FolderAliases beside the engine.",
            )  # fmt: skip
        return Served(alias, str(root), weights_digest(path, self._digests, revision=self._revision))

    def _here(self, root: Any) -> Path | None:
        if not isinstance(root, str) or not root:
            return None
        for there, here in self._roots.items():
            if root == there or root.startswith(there.rstrip("/") + "/"):
                return here / root[len(there) :].lstrip("/")
        path = Path(root)
        return path if path.is_absolute() and path.exists() else None

    def _get(self, path: str, *, missing_ok: bool = False) -> dict[str, Any]:
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with _opener.open(request, timeout=self._timeout_s) as answer:
                found = json.loads(answer.read(_LARGEST))
        except (OSError, ValueError) as error:
            if missing_ok:
                return {}
            status = f"status {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
            raise InvalidField(
                f"the endpoint does not say what it serves ({status}).", field="url",
                remedy="Check the address, and that it serves /v1/models.",
            ) from None  # fmt: skip
        return found if isinstance(found, dict) else {}
