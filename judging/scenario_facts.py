"""`registry KIND NAME {...}` lines of a scenario as facts."""

from collections.abc import Callable, Mapping

from ..schemas.epochs import CORPUS_ID
from ..schemas.errors import InvalidField
from ..schemas.facts import (
    AdapterFact,
    AliasFact,
    CorpusFact,
    EpochFact,
    FactBody,
    InvalidationFact,
    PolicyFact,
    StoreFact,
    TemplateFact,
    WeightsFact,
)

_OFF = frozenset({"off", "no", "false", "none", "forbidden", "0"})


def fact_body(kind: str, name: str, given: Mapping[str, str], symbol: Callable[[str], str]) -> FactBody:
    """The fact that a registry line states. Raises `InvalidField` for an unknown kind."""
    digest = symbol(given.get("digest", given.get("weights", "none")))
    match kind:
        case "template":
            return TemplateFact(template_id=name, template_digest=digest)
        case "alias":
            return AliasFact(alias=name, weights_digest=digest, resolved_model=given.get("model", ""))
        case "weights":
            version = given.get("version")
            return WeightsFact(
                model_id=name,
                weights_digest=digest,
                epoch=given.get("epoch", ""),
                version=int(version) if version else None,
            )
        case "adapter":
            return AdapterFact(adapter_name=name, adapter_digest=digest)
        case "corpus":
            change = given.get("change", "change")
            return CorpusFact(
                corpus_id=name,
                corpus_digest=digest,
                change="add" if change == "add" else "delete" if change in ("delete", "remove") else "change",
            )
        case "policy":
            return _policy(name, given)
        case "epoch":
            return EpochFact(epoch=given.get("epoch", name), where=_where(given), why=given.get("why", ""))
        case "invalidation":
            return InvalidationFact(op_id=name, where=_where(given), cause=given.get("cause", ""))
        case "store":
            return StoreFact(store=name, partitioned=given.get("partitioned", "false") not in _OFF)
    raise InvalidField("is no kind of fact.", field="registry", remedy="See tests/catalogue/FORMAT.md.")


def _policy(name: str, given: Mapping[str, str]) -> PolicyFact:
    lag = given.get("max_lag")
    sharing = given.get("sharing", "fleet")
    group = given.get("group", given.get("pool", ""))
    if sharing not in ("none", "group", "fleet"):
        group, sharing = sharing, "group"
    elif group and "sharing" not in given:
        sharing = "group"
    return PolicyFact(
        tenant_id=name,
        sharing="none" if sharing == "none" else "group" if sharing == "group" else "fleet",
        group=group,
        caching=given.get("caching", given.get("cache", "on")) not in _OFF,
        max_lag_versions=int(lag) if lag is not None else None,
    )


def _where(given: Mapping[str, str]) -> dict[str, str]:
    names = {"tenant": "tenant_id", "model": "model_id", "template": "template_id", "adapter": "adapter_name"}
    names["corpus_id"] = CORPUS_ID
    return {names[name]: value for name, value in given.items() if name in names}
