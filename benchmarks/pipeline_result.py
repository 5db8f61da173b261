"""What a run of the pipeline's benchmark was asked for, what came out, and the table for people."""

from msgspec import Struct

BUDGET_RATIO, BUDGET_P99_S = 0.6, 2.0


class Tier(Struct):
    """Processor time for an event, microseconds, while the rate was sustained; the largest resident memory, MB."""

    cpu_us: float
    peak_mb: float


class Result(Struct):
    """One run. Rates are events a second; latencies are seconds from sending to being queryable."""

    events: int
    records: int
    bytes_per_event: float
    findings: int
    sustained: float
    floor: float
    ratio: float
    floor_cpu_us: float
    floor_store_cpu_us: float
    half_rate: float
    latency_p50_s: float
    latency_p99_s: float
    latency_max_s: float
    latencies: int
    stages: dict[str, list[float]]
    """p50 and p99 of the seconds from sending until a finding was in its topic, and until it was inserted."""
    half_cores: dict[str, float]
    """Cores that each process used at half of the rate."""
    disk: dict[str, float]
    """Bytes an event on the store's disk, compressed, by table; `kafka`: in the log, with each producer's codec."""
    tiers: dict[str, Tier]
    wrong: list[str]


class Options(Struct, frozen=True, kw_only=True):
    """What is measured."""

    events: int
    faults: int
    seed: int
    envelope: int
    detectors: int
    compression: str
    batch_rows: int
    batch_wait_s: float
    events_wait_s: float | None


def quantile(values: list[float], share: float) -> float:
    """0 of nothing."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def table(result: Result, options: Options) -> str:
    """The result for people."""
    met = {True: "met", False: "MISSED"}
    lines = [
        f"{result.events:,} events in {result.records:,} records, {result.bytes_per_event:.0f} bytes an event, "
        f"{result.findings:,} findings, {options.detectors} detector(s), compression {options.compression}",
        f"  sustained, all queryable {result.sustained:>10,.0f} events/s",
        f"  floor, only stored       {result.floor:>10,.0f} events/s",
        f"  ratio                    {result.ratio:>10.2f}      (budget {BUDGET_RATIO}: "
        f"{met[result.ratio >= BUDGET_RATIO]})",
        f"  latency at {result.half_rate:,.0f} events/s, {result.latencies} findings: "
        f"p50 {result.latency_p50_s:.2f} s, "
        f"p99 {result.latency_p99_s:.2f} s, max {result.latency_max_s:.2f} s",
        "  of it, p50 and p99: "
        + ", ".join(f"{name} after {p50:.2f} and {p99:.2f} s" for name, (p50, p99) in result.stages.items()),
        f"                                         (budget p99 {BUDGET_P99_S:g} s: "
        f"{met[result.latency_p99_s <= BUDGET_P99_S]})",
        f"  {'process':<14}{'us of CPU an event':>20}{'peak MB':>10}",
    ]
    for name, tier in sorted(result.tiers.items(), key=lambda pair: -pair[1].cpu_us):
        lines.append(f"  {name:<14}{tier.cpu_us:>20.2f}{tier.peak_mb:>10.0f}")
    lines.append(f"  {'floor-store':<14}{result.floor_store_cpu_us:>20.2f}")
    lines.append("  cores at half the rate: " + ", ".join(f"{name} {n:.2f}" for name, n in result.half_cores.items()))
    lines.append("  bytes an event on disk: " + ", ".join(f"{name} {each:.0f}" for name, each in result.disk.items()))
    lines.append("  correct" if not result.wrong else "  WRONG: " + "; ".join(result.wrong[:5]))
    return "\n".join(lines)
