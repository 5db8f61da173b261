"""What the workers measure, as a closed list: each name with its kind, what it means and what to do about it.

A name outside the list does not type-check. Counts are kept by whoever counts anyway and copied when somebody asks, so
a metric costs the pipeline nothing; what has to be noted as it happens is noted once a batch.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Name = Literal[
    "kvtrail_worker_info",
    "kvtrail_worker_ready",
    "kvtrail_records_total",
    "kvtrail_duplicates_total",
    "kvtrail_lag_records",
    "kvtrail_event_age_seconds",
    "kvtrail_refused_total",
    "kvtrail_detector_findings_total",
    "kvtrail_detector_skipped_records_total",
    "kvtrail_detector_gap_records_total",
    "kvtrail_detector_batch_seconds",
    "kvtrail_detector_compared_hits",
    "kvtrail_detector_covered_hits",
    "kvtrail_detector_facts",
    "kvtrail_detector_ticks_total",
    "kvtrail_detector_parts_left_out_total",
    "kvtrail_detector_snapshot_bytes",
    "kvtrail_detector_snapshot_seconds",
    "kvtrail_detector_snapshot_age_seconds",
    "kvtrail_detector_unjudged_records_total",
    "kvtrail_resolver_joined_total",
    "kvtrail_resolver_expired_total",
    "kvtrail_resolver_contradictions_total",
    "kvtrail_resolver_waiting",
    "kvtrail_sink_rows_total",
    "kvtrail_sink_batches_total",
    "kvtrail_sink_dead_letters_total",
    "kvtrail_sink_insert_seconds",
    "kvtrail_sink_retries_total",
    "kvtrail_sink_store_away_seconds",
    "kvtrail_sink_changed_batches_total",
    "kvtrail_sink_longest_ttl_seconds",
    "kvtrail_sink_retention_alarms_total",
    "kvtrail_fleet_observations_total",
    "kvtrail_fleet_waiting",
    "kvtrail_fleet_late_records_total",
    "kvtrail_notify_open_incidents",
    "kvtrail_notify_notifications_total",
    "kvtrail_notify_attempts_total",
    "kvtrail_notify_waiting",
    "kvtrail_notify_oldest_waiting_seconds",
    "kvtrail_notify_historical_total",
    "kvtrail_heartbeat_beats_total",
    "kvtrail_heartbeat_age_seconds",
    "kvtrail_heartbeat_latency_seconds",
]
Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of every histogram, seconds."""


class Metric(Struct, frozen=True, kw_only=True):
    """`remedy`: what to do when the value is not what it should be."""

    kind: Kind
    meaning: str
    remedy: str
    labels: tuple[str, ...] = ()


def _metric(kind: Kind, meaning: str, remedy: str, *labels: str) -> Metric:
    return Metric(kind=kind, meaning=meaning, remedy=remedy, labels=labels)


METRICS: Mapping[Name, Metric] = {
    "kvtrail_worker_info": _metric(
        "gauge", "Always 1; says which worker this is.", "More than one process with one instance name fence each "
        "other: give each its own.", "worker", "instance", "version",
    ),
    "kvtrail_worker_ready": _metric(
        "gauge", "1 when `/readyz` would answer 200, else 0.", "`/readyz` says what is missing.", "worker",
    ),
    "kvtrail_records_total": _metric(
        "counter", "Records processed: judged by a detector, stored by a sink, joined by a resolver.",
        "Standing still while `kvtrail_lag_records` grows: read the worker's log.", "worker", "topic", "partition",
    ),
    "kvtrail_duplicates_total": _metric(
        "counter", "Events that had been seen before and were dropped.", "A steady rate is a producer that sends "
        "everything twice; a burst after its broker was away is normal.", "worker",
    ),
    "kvtrail_lag_records": _metric(
        "gauge", "Records in the log that this worker has not processed. Absent while the broker does not say.",
        "Growing for minutes: add a worker with an instance name of its own, up to one a partition.",
        "worker", "topic", "partition",
    ),
    "kvtrail_event_age_seconds": _metric(
        "gauge", "Age of the newest event processed, by its producer's clock. Grows in a partition without traffic.",
        "With `kvtrail_lag_records` at 0, nothing is sent; otherwise the worker is behind. Negative: a producer's "
        "clock is ahead.", "worker", "topic", "partition",
    ),
    "kvtrail_refused_total": _metric(
        "counter", "Records or single events that could not be decoded.", "`kvtrail dead-letter list`.",
        "worker", "topic", "partition",
    ),
    "kvtrail_detector_findings_total": _metric(
        "counter", "Finding revisions published, retractions included.", "`kvtrail findings`.", "cause", "severity",
        "status",
    ),
    "kvtrail_detector_skipped_records_total": _metric(
        "counter", "Records delivered that were part of the state already.", "Normal after a start or a rebalance; "
        "steadily rising means that commits do not reach the broker.",
    ),
    "kvtrail_detector_gap_records_total": _metric(
        "counter", "Records read from the log because they were not delivered.", "Normal after a start.",
    ),
    "kvtrail_detector_batch_seconds": _metric(
        "histogram", "From records in hand to findings acknowledged, for one batch of one partition.",
        "High with little processor use: the broker is slow. High with much: add partitions and workers.",
    ),
    "kvtrail_detector_compared_hits": _metric(
        "gauge", "Hits whose creator is known, of the partitions this worker holds.", "None: nothing can be judged; "
        "see that creates are published.",
    ),
    "kvtrail_detector_covered_hits": _metric(
        "gauge", "Of the compared hits, those for which both sides know the dimension. Coverage is this over "
        "`kvtrail_detector_compared_hits`.", "Low: make the producer send the dimension. What is unknown is never "
        "judged equal.", "dimension",
    ),
    "kvtrail_detector_facts": _metric("gauge", "Facts known.", "None: templates, aliases and policies are not known."),
    "kvtrail_detector_ticks_total": _metric(
        "counter", "Ticks written to the facts topic to prove that all facts had been read.",
        "One a batch is normal in a quiet fleet.",
    ),
    "kvtrail_detector_parts_left_out_total": _metric(
        "counter", "Parts of a request that later parts of it were not compared with: it has more than 256 in one home "
        "that are open.", "Any: see that request ids are unique, and that gateways publish the end of requests.",
    ),
    "kvtrail_detector_snapshot_bytes": _metric(
        "gauge", "Size of the last snapshot written, compressed.", "Compare with the recovery time you can bear.",
        "partition",
    ),
    "kvtrail_detector_snapshot_seconds": _metric(
        "gauge", "Time that the last snapshot took from copy to acknowledgement; the partition goes on meanwhile.",
        "Twenty times as long, at least `detector.snapshot_s` and at most two minutes, passes between two.",
        "partition",
    ),
    "kvtrail_detector_snapshot_age_seconds": _metric(
        "gauge", "Since the state was last saved, or last found unchanged.", "Much above `detector.snapshot_s` and "
        "above twenty times `kvtrail_detector_snapshot_seconds`: saving fails, see the log; a restart would judge that "
        "much again.", "partition",
    ),
    "kvtrail_detector_unjudged_records_total": _metric(
        "counter", "Records left out because judging them failed twice in the same way: a defect of this build.",
        "Any: `kvtrail dead-letter list --stage judge`; upgrade or roll back, then `kvtrail dead-letter replay`. Until "
        "then their events are missing from every verdict, as a STREAM_GAP says.",
    ),
    "kvtrail_resolver_joined_total": _metric(
        "counter", "Resolutions made: events that got their request's identity.",
        "None while events lack an identity: see that gateways publish contexts under the same request ids.",
    ),
    "kvtrail_resolver_expired_total": _metric(
        "counter", "Events given up without an identity: no context came within the window, or contexts contradict.",
        "Rising: a gateway does not publish contexts, or later than `resolver.window_s`.",
    ),
    "kvtrail_resolver_contradictions_total": _metric(
        "counter", "Contexts that contradict another one of their request.",
        "Any: a request id is used twice, or by somebody else.",
    ),
    "kvtrail_resolver_waiting": _metric(
        "gauge", "Contexts and events kept in the window of a partition.", "At `resolver.limit` the oldest are given "
        "up: raise it, or shorten `resolver.window_s`.", "partition",
    ),
    "kvtrail_sink_rows_total": _metric("counter", "Rows inserted.", "See `kvtrail_records_total`."),
    "kvtrail_sink_batches_total": _metric(
        "counter", "Batches stored.", "Many small ones cost ClickHouse parts: raise `sink.events_wait_s`.",
    ),
    "kvtrail_sink_dead_letters_total": _metric(
        "counter", "Dead letters written.", "`kvtrail dead-letter list`, then mend the producer.",
    ),
    "kvtrail_sink_insert_seconds": _metric(
        "histogram", "Time of one insert, retries not included.", "Rising: look at ClickHouse's parts and merges.",
    ),
    "kvtrail_sink_retries_total": _metric(
        "counter", "Calls to the store that failed and were tried again.", "Rising: the store is away or overloaded; "
        "nothing is lost while the log is kept.",
    ),
    "kvtrail_sink_store_away_seconds": _metric(
        "gauge", "Since when the store has failed without a success between, seconds; 0 while it answers.",
        "Alarm above a few minutes: the log keeps everything, but only for as long as its retention.",
    ),
    "kvtrail_sink_changed_batches_total": _metric(
        "counter", "Batches that were sent again after a crash and decode otherwise than what is stored of them.",
        "Any: this build decodes otherwise than the one before; the log names the range, of which some tables keep the "
        "old rows. `kvtrail replay` shows what that changes.",
    ),
    "kvtrail_sink_longest_ttl_seconds": _metric(
        "gauge", "The longest TTL or maximum age seen in a create since the start.", "Must stay below the shortest "
        "retention divided by `retention.factor`.",
    ),
    "kvtrail_sink_retention_alarms_total": _metric(
        "counter", "Findings RETENTION_TOO_SHORT raised.", "Raise `retention.events_days` and "
        "`retention.evidence_days`, or lower the TTL.",
    ),
    "kvtrail_fleet_observations_total": _metric(
        "counter", "Observations folded by the rules that compare homes, since the state was begun.",
        "None: see that detectors run with `fleet.enabled`.",
    ),
    "kvtrail_fleet_waiting": _metric(
        "gauge", "Observations that wait until their place in the fleet's order is known.",
        "Growing: a detector does not get on; after `fleet.patience_s` they are folded without it.",
    ),
    "kvtrail_fleet_late_records_total": _metric(
        "counter", "Records whose observations came after later ones had been folded.",
        "Rising: findings about several homes may differ from those of an offline run; raise `fleet.clock_skew_s`, or "
        "`fleet.patience_s`.",
    ),
    "kvtrail_notify_open_incidents": _metric(
        "gauge", "Incidents that were told and still stand.", "`kvtrail notify log`, then the runbook of the cause.",
    ),
    "kvtrail_notify_notifications_total": _metric(
        "counter", "Notifications decided on.", "Many of kind grown: raise `notify.growth_interval_s`.", "kind",
    ),
    "kvtrail_notify_attempts_total": _metric(
        "counter", "Attempts to deliver, by how they ended; resent is what an Alertmanager is told again.",
        "failed rising: the target is away; gave_up: it refuses what it is sent, see `kvtrail notify log`.",
        "target", "status",
    ),
    "kvtrail_notify_waiting": _metric(
        "gauge", "Notifications that a target has not taken yet.", "Not 0 for minutes: `/readyz` says why.", "target",
    ),
    "kvtrail_notify_oldest_waiting_seconds": _metric(
        "gauge", "Age of the oldest notification that a target has not taken.", "As `kvtrail_notify_waiting`.",
        "target",
    ),
    "kvtrail_notify_historical_total": _metric(
        "counter", "Findings that paged nobody because their events were older than `notify.max_age_s`.",
        "Normal after a backfill; otherwise look at producers' clocks.",
    ),
    "kvtrail_heartbeat_beats_total": _metric(
        "counter", "Heartbeats published; late ones were not acknowledged in time.", "late: the broker is away.",
        "outcome",
    ),
    "kvtrail_heartbeat_age_seconds": _metric(
        "gauge", "Since the newest finding about the heartbeat was appended, as the notifier sees it.",
        "Above `heartbeat.deadline_s` it pages: that partition is silent.", "partition",
    ),
    "kvtrail_heartbeat_latency_seconds": _metric(
        "histogram", "From a heartbeat's hit to its finding on the findings topic.",
        "What everybody's findings take at least: see the detector's lag where it is high.",
    ),
}  # fmt: skip
"""The whole list."""

_HISTOGRAMS = tuple(name for name, metric in METRICS.items() if metric.kind == "histogram")


class Registry:
    """The values of one worker. Everything here is called from the worker's event loop."""

    def __init__(self) -> None:
        self._values: dict[Name, dict[Labels, float]] = {name: {} for name in METRICS}
        self._buckets: dict[Name, list[int]] = {name: [0] * (len(BUCKETS_S) + 1) for name in _HISTOGRAMS}
        self._sums: dict[Name, float] = dict.fromkeys(_HISTOGRAMS, 0.0)

    def set(self, name: Name, value: float, **labels: str | int) -> None:
        """A gauge's value, or a counter's as somebody else keeps it."""
        self._values[name][_labels(name, labels)] = value

    def add(self, name: Name, by: float = 1, **labels: str | int) -> None:
        """Count."""
        values, key = self._values[name], _labels(name, labels)
        values[key] = values.get(key, 0) + by

    def observe(self, name: Name, seconds: float) -> None:
        """One measurement of a histogram."""
        self._buckets[name][bisect_left(BUCKETS_S, seconds)] += 1
        self._sums[name] += seconds

    def clear(self, name: Name) -> None:
        """Forget every sample: partitions that went elsewhere are not ours to report."""
        self._values[name].clear()

    def render(self) -> str:
        """Prometheus' text format."""
        lines: list[str] = []
        for name, metric in METRICS.items():
            samples = self._values[name]
            if not samples and metric.kind != "histogram":
                continue
            lines += [f"# HELP {name} {_help(metric.meaning)}", f"# TYPE {name} {metric.kind}"]
            lines += [f"{name}{_braces(labels)} {value:.12g}" for labels, value in sorted(samples.items())]
            if metric.kind == "histogram":
                lines += self._histogram(name)
        return "\n".join(lines) + "\n"

    def _histogram(self, name: Name) -> list[str]:
        lines, total = [], 0
        for bound, count in zip([*map("{:g}".format, BUCKETS_S), "+Inf"], self._buckets[name], strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._sums[name]:.12g}", f"{name}_count {total}"]


def _labels(name: Name, labels: Mapping[str, str | int]) -> Labels:
    declared = METRICS[name].labels
    if labels.keys() != set(declared):
        raise ValueError(f"{name} has the labels {declared}")
    return tuple((label, str(labels[label])) for label in declared)


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{label}="{_quoted(value)}"' for label, value in labels) + "}"


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def page() -> str:
    """`docs/reference/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated from `streams/metrics.py` by `python -m kvtrail.streams.metrics`; do not edit.",
        "",
        "Each worker (`kvtrail detect`, `sink`, `resolve`, `notify`, `heartbeat`) answers on its own port where",
        "`detector.metrics_port`, `sink.metrics_port` ... is set (0: a free port, which the log names; by default",
        "nothing listens), on loopback unless `detector.metrics_host` and so on say otherwise:",
        "",
        "| path | answers |",
        "|---|---|",
        "| `/metrics` | everything below, in Prometheus' text format |",
        "| `/livez` | 200 while the worker gets on, 503 with reasons where only a restart can help |",
        "| `/readyz` | 200 when it does its work now (partitions assigned and recovered, store reachable), else 503 "
        "with reasons |",
        "",
        "The list is closed: there is no metric that is not in it.",
        "",
        "| name | kind | labels | means | what to do |",
        "|---|---|---|---|---|",
    ]
    for name, metric in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{name}` | {metric.kind} | {labels} | {metric.meaning} | {metric.remedy} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    from pathlib import Path

    (Path(__file__).resolve().parents[1] / "docs" / "reference" / "metrics.md").write_text(page())


if __name__ == "__main__":
    main()
