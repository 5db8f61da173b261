"""The spot check on the real model: how far apart right and wrong entries are, false alarms and misses.

    python -m kvtrail.benchmarks.spot_check [--prompts N] [--dtype float32] [--svg FILE]

Right entries are computed in one go, in pieces of 32 tokens, their last tokens one by one, and with another number of
threads: what is summed in another order is not wrong. Each is checked for several requests, hence at several positions.
The ratio is the error over its tolerance, the larger of the first layer's and the deeper layers'; above 1 the check
fails.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import torch
from kvtrail.cache_node.model import load_model
from kvtrail.cache_node.recomputing import measure
from kvtrail.cache_node.spot_check import TOLERANCES, Tolerance, conclude, positions_of

from . import spot_check_entries as entries
from .spot_check_entries import Bench, Prompt, Stored
from .spot_check_plot import draw

REQUESTS = 3
POSITIONS = 4


class Checked(NamedTuple):
    """One check: the errors of the first layer and of the deeper ones, and whether it failed."""

    first: float
    deep: float
    failed: bool

    def ratio(self, tolerance: Tolerance) -> float:
        return max(self.first / tolerance.first, self.deep / tolerance.deep)


Found = dict[str, list[Checked]]


def checks(bench: Bench, prompt: Prompt, stored: Stored, tolerance: Tolerance) -> Iterator[Checked]:
    """The entry, held against the prompt for a few requests. An entry of another length is judged by what both cover,
    so that the errors alone have to tell it."""
    token_ids = bench.model.encode(prompt.text)
    both = min(len(token_ids), stored[0][0].shape[2])
    for request in range(REQUESTS):
        positions = positions_of(f"{prompt.number}/{request}", both, POSITIONS)
        errors = measure(bench.model, stored, token_ids, positions)
        failed = conclude(errors, positions, tolerance).result == "fail"
        yield Checked(max(map(max, errors.first)), max(map(max, errors.deep)), failed)


def right(bench: Bench, prompt: Prompt) -> Iterator[Stored]:
    """The right entry, made in several ways."""
    token_ids = bench.model.encode(prompt.text)
    yield bench.prefill(token_ids)
    yield bench.prefill(token_ids, pieces=32)
    yield bench.prefill(token_ids, singly=16)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    yield bench.prefill(token_ids)
    torch.set_num_threads(threads)


WRONG: dict[str, entries.Make] = {
    "another tenant's prompt": entries.other_tenant,
    "one word edited": entries.one_word,
    "one token replaced": entries.one_token,
    "one position further on": entries.shifted,
    "8 bits and back": entries.in_eight_bits,
    "fp8 (e4m3) and back": entries.through(torch.float8_e4m3fn),
    "bfloat16 and back": entries.through(torch.bfloat16),
    "two layers exchanged": entries.exchanged,
    "first layer right, others another tenant's": entries.spliced,
    "last quarter zero": entries.torn,
    "16 positions of one layer zero": entries.zeroed,
    "64 bits flipped": entries.flipped(64),
    "1 bit flipped": entries.flipped(1),
}
Change = Callable[[Bench, str, torch.Tensor], torch.Tensor]
WEIGHTS: dict[str, Change] = {
    "weights with 1 % noise": entries.noise(0.01),
    "weights with 0.1 % noise": entries.noise(0.001),
    "weights with 0.01 % noise": entries.noise(0.0001),
    "adapter of 5 % on queries and values": entries.adapter(0.05),
    "adapter of 1 % on queries and values": entries.adapter(0.01),
}


def run(dtype: str, count: int) -> tuple[Found, tuple[float, float]]:
    """Kind of entry -> its checks; seconds of a prefill and of a check, in the mean."""
    bench = Bench(load_model(dtype=dtype))
    tolerance, made = TOLERANCES[dtype], entries.prompts(count)
    found: Found = {"right": []}
    prefilling = checking = 0.0
    for prompt in made:
        for stored in right(bench, prompt):
            found["right"] += checks(bench, prompt, stored, tolerance)
        started = time.perf_counter()
        stored = bench.prefill(bench.model.encode(prompt.text))
        filled = time.perf_counter()
        done = list(checks(bench, prompt, stored, tolerance))
        checking += (time.perf_counter() - filled) / len(done)
        prefilling += filled - started
        for kind, make in WRONG.items():
            if not kind.startswith(dtype):
                found.setdefault(kind, []).extend(checks(bench, prompt, make(bench, prompt), tolerance))
    others: dict[str, AbstractContextManager[None]] = {kind: bench.weights(change) for kind, change in WEIGHTS.items()}
    others["another base of the positions"] = entries.rotation(bench.model, 10_000.0)
    for kind, other in others.items():
        with other:
            of_others = [bench.prefill(bench.model.encode(prompt.text)) for prompt in made]
        found[kind] = [
            one
            for prompt, stored in zip(made, of_others, strict=True)
            for one in checks(bench, prompt, stored, tolerance)
        ]
    return found, (prefilling / count, checking / count)


def table(found: Found, tolerance: Tolerance) -> Iterator[str]:
    """One line a kind: how many checks, how many failed, and how far from the tolerance they were."""
    yield "| entry | checks | failed | error over tolerance: least | middle | most |"
    yield "|---|---|---|---|---|---|"
    for kind, checked in found.items():
        ratios = sorted(one.ratio(tolerance) for one in checked)
        shown = [f"{ratio:.2g}" for ratio in (ratios[0], ratios[len(ratios) // 2], ratios[-1])]
        yield f"| {kind} | {len(checked)} | {sum(one.failed for one in checked)} | {' | '.join(shown)} |"


def main() -> None:
    """Check everything, print the tables, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--dtype", choices=list(TOLERANCES), action="append")
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    drawn: dict[str, dict[str, list[float]]] = {}
    for dtype in given.dtype or list(TOLERANCES):
        tolerance = TOLERANCES[dtype]
        found, (prefilling, checking) = run(dtype, given.prompts)
        right_ones = found["right"]
        sys.stdout.write(f"\n{dtype}: at most {tolerance.first:g} in the first layer, {tolerance.deep:g} deeper\n\n")
        sys.stdout.write("\n".join(table(found, tolerance)) + "\n\n")
        first, deep = (max(getattr(one, name) for one in right_ones) for name in ("first", "deep"))
        sys.stdout.write(f"largest error of a right entry: first layer {first:.2g}, deeper {deep:.2g}\n")
        sys.stdout.write(f"prefill {prefilling * 1e3:.0f} ms, check {checking * 1e3:.0f} ms\n")
        drawn[dtype] = {kind: [one.ratio(tolerance) for one in checked] for kind, checked in found.items()}
    if given.svg:
        given.svg.write_text(draw(drawn))


if __name__ == "__main__":
    main()
