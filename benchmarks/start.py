"""What it costs to begin: CPU and memory of small commands, of a client, and of a plan for a small log.

    python benchmarks/start.py [--quick] [--rounds N]

Every figure is the median of several fresh processes. Seconds are of CPU, not of a clock, so that other
work on the machine hardly shows. CPU of a command is that of all its processes, Spark's JVM and its Python
workers too: this process adopts every descendant that outlives its parent (PR_SET_CHILD_SUBREAPER), waits
for all of them, and reads what the kernel has summed up. `accounted` is a check of that sum: a
grandchild that its parent does not wait for burns a known time, which must show up.

The last line is one JSON object; it exits with 1 when a limit is missed, and `missed` says which.

    version_s             `ramify --version`
    help_s                `ramify --help`
    client_import_s       `import ramify; ramify.Client`, and client_import_mb its resident set
    client_arrow_mb       the resident set after that client's code has made its first Arrow batch
    bare_spark_s          a PySpark script that starts Spark, reads the file of events and counts it
    plan_cold_s           `ramify plan` with six schemes on examples/, all processes
    plan_over_bare_spark  the one over the other
    plan_joined_s         the same command with a Spark that runs already (`ramify spark start`): the
                          command's own processes
    plan_none_s           the same command with `--spark none`
"""

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SCHEMES = "mst spt mult semcast portfolio:trees=8 explicit"
RAMIFY = [sys.executable, "-m", "ramify.cli"]
LIMITS = {
    "version_s": 0.35,
    "help_s": 0.5,
    "client_import_s": 0.6,
    "client_import_mb": 60.0,
    "client_arrow_mb": 130.0,
    "plan_over_bare_spark": 1.6,
    "plan_joined_s": 5.0,
}
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_PATIENCE_S = 300.0
_BURN_S = 0.5

_TELL = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
_CLIENT = f"import ramify; ramify.Client; {_TELL}"
_ARROW = f"""\
import ramify; ramify.Client
from datetime import UTC, datetime
from ramify.content.events.events import Event
from ramify.overlay.live.client.outbox import outgoing
outgoing(Event("a", "me", datetime.now(UTC), {{"price": 1.5}}), b"secret")
{_TELL}
"""
_BARE = """\
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
print(spark.read.json(sys.argv[1]).count())
spark.stop()
"""
_ORPHAN = f"""\
import os, time
if os.fork() == 0:
    while time.process_time() < {_BURN_S}:
        pass
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds of each")
    parser.add_argument("--rounds", type=int, help="rounds of each; 5 unless told")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 5)
    adopt()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(rounds, surroundings(Path(scratch)))
    missed = [name for name, most in LIMITS.items() if name in found and found[name] > most]
    print(json.dumps({**found, "missed": missed}))
    return 1 if missed else 0


def measure(rounds: int, env: Mapping[str, str]) -> dict[str, float]:
    found = {"accounted": round(cpu([sys.executable, "-c", _ORPHAN], env) / _BURN_S, 2)}
    assert 0.9 < found["accounted"] < 2.0, "the CPU of orphans is not accounted for"

    def note(name: str, value: float) -> None:
        found[name] = round(value, 3)
        print(f"{name} {found[name]}", flush=True)

    note("version_s", median(rounds, lambda: cpu([*RAMIFY, "--version"], env)))
    note("help_s", median(rounds, lambda: cpu([*RAMIFY, "--help"], env)))
    note("client_import_s", median(rounds, lambda: cpu([sys.executable, "-c", _CLIENT], env)))
    note("client_import_mb", median(rounds, lambda: printed(_CLIENT, env)))
    note("client_arrow_mb", median(rounds, lambda: printed(_ARROW, env)))
    cpu(plan(), env)  # kernels are compiled and cached by the first
    bare = [sys.executable, "-c", _BARE, str(EXAMPLES / "events.ndjson")]
    cold, plain = [], []
    for _ in range(rounds):  # in turns, so that both see the same machine
        plain.append(cpu(bare, env))
        cold.append(cpu(plan(), env))
    note("bare_spark_s", statistics.median(plain))
    note("plan_cold_s", statistics.median(cold))
    note("plan_over_bare_spark", statistics.median(cold) / statistics.median(plain))
    if offers(["spark", "--help"], env):
        note("plan_none_s", median(rounds, lambda: cpu(plan("--spark", "none"), env)))
        note("plan_joined_s", joined(rounds, env))
    return found


def joined(rounds: int, env: Mapping[str, str]) -> float:
    """The CPU of a plan that joins a Spark which runs already; that Spark's own is not counted."""
    subprocess.run([*RAMIFY, "spark", "start"], env=dict(env), check=True, stdout=subprocess.DEVNULL)
    try:
        own(plan(), env)  # the first job of a Spark starts its Python workers
        return median(rounds, lambda: own(plan(), env))
    finally:
        subprocess.run([*RAMIFY, "spark", "stop"], env=dict(env), check=True, stdout=subprocess.DEVNULL)
        orphans()


def plan(*more: str) -> list[str]:
    files = {
        "--events": "events.ndjson",
        "--subscriptions": "subscriptions.jsonl",
        "--attachments": "attachments.json",
        "--rules": "rules.json",
    }
    given = [part for option, name in files.items() for part in (option, str(EXAMPLES / name))]
    today = ["--today", "hub=aws-eu-central-1", "--hours", "24"]
    return [*RAMIFY, "plan", *given, *today, "--schemes", SCHEMES, "--json", *more]


def surroundings(scratch: Path) -> dict[str, str]:
    """The environment of all commands: this tree's code, a cache of their own, a Java."""
    from ramify.pipeline.session.java import find_java

    env = dict(os.environ) | {"PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"XDG_RUNTIME_DIR": str(scratch), "XDG_CACHE_HOME": str(scratch)}
    env["JAVA_HOME"] = str(find_java(scratch).home)
    return env | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def adopt() -> None:
    """From now on, a descendant whose parent has ended is a child of this process."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def cpu(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Seconds of CPU of a command and all its descendants, which have ended when this returns."""
    before = spent()
    run(command, env)
    orphans()
    return spent() - before


def own(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Seconds of CPU of a command and the children that it waited for."""
    before = spent()
    run(command, env)
    return spent() - before


def run(command: Sequence[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=_PATIENCE_S)
    # 1: some rows of the examples cannot be used, and are not meant to
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")


def orphans() -> None:
    """Wait for every child that is left."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.02)
    raise SystemExit("processes of the last command do not end")


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def printed(code: str, env: Mapping[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(env), capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def offers(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether there is such a command: older versions have fewer."""
    done = subprocess.run([*RAMIFY, *words], env=dict(env), capture_output=True)
    return done.returncode == 0


def median(rounds: int, once: Callable[[], float]) -> float:
    return statistics.median(once() for _ in range(rounds))


if __name__ == "__main__":
    raise SystemExit(main())
