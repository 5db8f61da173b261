"""Mutation testing of the ledger and the rules: `make mutation`, outside CI.

A sample of small faults is put into a copy of the judging core, one at a time, by cosmic-ray; the tests that do not
draw random histories run on each. A fault that no test sees survives, and is printed for a person to look at.
Everything happens in a temporary folder: nothing of it touches the working tree, and cosmic-ray lives in an
environment of its own.
"""

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COSMIC_RAY = "cosmic-ray==8.7.0"
COPIED = (
    "__init__.py",
    "pyproject.toml",
    "judging",
    "schemas",
    "tests/__init__.py",
    "tests/judging",
    "tests/catalogue",
)
MUTATED = ("judging/ledger", "judging/rules")
WORDS = ("registry.py", "cases.py", "review.py", "pages.py", "needs.py", "__init__.py")
"""Modules that hold what is said about rules, not what they do."""
TESTS = "tests/catalogue " + " ".join(
    f"tests/judging/test_{name}.py"
    for name in (
        "edges",
        "margins",
        "disorder",
        "rules",
        "lanes",
        "doubt",
        "aging",
        "resolutions",
        "incident",
        "express",
    )
)
"""What judges histories, quickest killers first; drawn histories would kill more, and take an hour more."""
TIMEOUT_S = 120


def main() -> int:
    """Run the sample; exit status 1 when the share of killed mutants is below `--least`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="How many mutants.")
    parser.add_argument("--seed", type=int, default=1, help="Which ones.")
    parser.add_argument("--least", type=float, default=0.0, help="The least share of killed mutants, 0 to 1.")
    parser.add_argument("--only", default="", help="Only mutants of files whose path holds this.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvtrail-mutation-") as folder:
        share = _run(Path(folder), given.sample, given.seed, given.only)
    return 1 if share < given.least else 0


def _run(folder: Path, sample: int, seed: int, only: str) -> float:
    copy = folder / "kvtrail"
    for name in COPIED:
        source, target = ROOT / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    tests = f"{sys.executable} -m pytest -x -q -p no:cacheprovider {TESTS}"
    modules = ", ".join(f'"{name}"' for name in MUTATED)
    words = ", ".join(f'"**/{name}"' for name in WORDS)
    (copy / "mutation.toml").write_text(
        f"[cosmic-ray]\nmodule-path = [{modules}]\ntimeout = {TIMEOUT_S}.0\nexcluded-modules = [{words}]\n"
        f'test-command = "{tests}"\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    # The copy comes before the installed package; a fault must not survive as compiled code.
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(tests.split(), cwd=copy, env=environment, check=True, stdout=subprocess.DEVNULL)
    _cosmic_ray(copy, environment, "init", "mutation.toml", "session.sqlite")
    session = sqlite3.connect(copy / "session.sqlite")
    possible, drawn = _draw(session, sample, seed, only)
    _say(f"{drawn} of {possible} possible mutants, seed {seed}")
    _cosmic_ray(copy, environment, "exec", "mutation.toml", "session.sqlite")
    return _report(session)


def _cosmic_ray(copy: Path, environment: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "uv", "tool", "run", "-q", "--from", COSMIC_RAY, "cosmic-ray", *words]
    subprocess.run(command, cwd=copy, env=environment, check=True)


def _draw(session: sqlite3.Connection, sample: int, seed: int, only: str) -> tuple[int, int]:
    """Leave only the drawn mutants in the session. `X | None` of an annotation is no code: its mutants are left out,
    or they would make the score look good. So is `is` for `==` or `<`, which is hardly ever another answer, or they
    would make it look bad."""
    query = (
        "SELECT job_id FROM mutation_specs WHERE operator_name NOT LIKE '%BitOr%' AND instr(module_path, ?) AND NOT "
        "((operator_name LIKE '%\\_Is' ESCAPE '\\' OR operator_name LIKE '%\\_IsNot' ESCAPE '\\') "
        "AND operator_name NOT LIKE '%Operator\\_Is%' ESCAPE '\\')"
    )
    order = " ORDER BY module_path, start_pos_row, start_pos_col, operator_name, occurrence"
    jobs = [job for (job,) in session.execute(query + order, (only,))]
    kept = random.Random(seed).sample(jobs, min(sample, len(jobs)))
    session.execute("CREATE TEMP TABLE kept (job_id TEXT PRIMARY KEY)")
    session.executemany("INSERT INTO kept VALUES (?)", [(job,) for job in kept])
    for table in ("mutation_specs", "work_items"):
        session.execute(f"DELETE FROM {table} WHERE job_id NOT IN (SELECT job_id FROM kept)")
    session.commit()
    return len(jobs), len(kept)


def _report(session: sqlite3.Connection) -> float:
    rows = session.execute(
        "SELECT module_path, test_outcome, diff FROM mutation_specs JOIN work_results USING (job_id) "
        "ORDER BY module_path, start_pos_row"
    ).fetchall()
    alive: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for path, outcome, diff in rows:
        total[path] += 1
        if "SURVIVED" in outcome.upper():
            alive[path] += 1
            _say(f"\nsurvived in {path}\n{diff}")
    for path in sorted(total):
        _say(f"{path:<34} {total[path] - alive[path]:>4} of {total[path]:>4} killed")
    killed = sum(total.values()) - sum(alive.values())
    share = killed / max(1, sum(total.values()))
    _say(f"{'all':<34} {killed:>4} of {sum(total.values()):>4} killed: {share:.1%}")
    return share


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
