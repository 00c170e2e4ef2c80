"""`make fuzz`: each parser reads changed bytes for a bounded time; what it does wrong is kept and printed.

    python tests/support/fuzz.py [--minutes 10] [--target sql ...] [--seed 1]

With atheris, what a change reaches in the code guides the next one.
Without it inputs are changed blindly, and the first line says so. A find is written to
tests/fuzz/corpus/<target>/. Once it is mended, the file stays, and `make test` reads it for ever.
"""

import argparse
import hashlib
import importlib
import importlib.util
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CORPUS = Path(__file__).parent.parent / "fuzz" / "corpus"
MOST_SECONDS = 20
MOST_BYTES = 4 << 30
LONGEST = 20_000


def mutated(rng: random.Random, seeds: list[bytes], words: tuple[bytes, ...]) -> bytes:
    """A seed with some changes: bytes, words that occur there, and pieces of itself or of another seed."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 2, 3, 5, 8])):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 1, 2, 4, 16, 64]))
        other = rng.choice(seeds)
        cut = rng.randrange(len(other) + 1)
        piece = other[cut : cut + rng.choice([1, 4, 16, 64])]
        match rng.randrange(7):
            case 0:
                data[at:end] = b""
            case 1:
                data[at:at] = rng.choice(words) if words else rng.randbytes(2)
            case 2:
                data[at:end] = rng.choice(words) if words else rng.randbytes(1)
            case 3:
                data[at:at] = piece
            case 4:
                data[at:at] = bytes(data[at:end]) * rng.choice([1, 2, 3, 50])
            case 5:
                data[at:end] = rng.randbytes(end - at)
            case 6 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
    return bytes(data[:LONGEST])


def kept(target: str) -> list[bytes]:
    """What was found before."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]


def keep(target: str, data: bytes) -> Path:
    """Write a find down; the same bytes have the same name."""
    path = CORPUS / target / hashlib.blake2b(data, digest_size=6).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def run_blindly(target: str, seconds: float, seed: int) -> int:
    """Change inputs at random; 1 when there is a find."""
    from fuzz_targets import TARGETS, RefusedError

    parser, rng = TARGETS[target], random.Random(f"{target}/{seed}")
    seeds = [*parser.seeds, *kept(target)]
    end, count, refused = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        data = mutated(rng, seeds, parser.words)
        count += 1
        start = time.process_time()
        try:
            parser(data)
        except RefusedError:
            refused += 1
        except Exception as error:
            print(
                f"{target}: {type(error).__name__}: {str(error)[:300]}\n  {keep(target, data)}", flush=True
            )
            return 1
        else:
            if rng.random() < 0.05 and len(seeds) < 1_000:
                seeds.append(data)
        if time.process_time() - start > MOST_SECONDS:
            print(f"{target}: takes over {MOST_SECONDS} s of CPU time\n  {keep(target, data)}", flush=True)
            return 1
    print(f"{target}: {count:,} inputs, {count - refused:,} accepted", flush=True)
    return 0


def run_guided(target: str, seconds: float, seed: int) -> int:
    """The same under atheris, which ends the process at a find."""
    import atheris

    # what numba compiles must stay as it is written
    for path in (Path(importlib.util.find_spec("ramify").submodule_search_locations[0])).rglob("*.py"):
        if re.search(r"^@(compiled|inlined)", path.read_text(encoding="utf-8"), re.MULTILINE):
            parts = path.with_suffix("").parts
            importlib.import_module(".".join(parts[len(parts) - parts[::-1].index("ramify") - 1 :]))
    folders = ["ramify.content.filters", "ramify.content.events.framing", "ramify.content.events.records"]
    folders += [
        "ramify.overlay.control",
        "ramify.overlay.routing.headers",
        "ramify.overlay.live.wire.connection",
    ]
    folders += [
        "ramify.planning.plans.files",
        "ramify.planning.pricing.rules",
        "ramify.network.graphs.files",
    ]
    with atheris.instrument_imports(include=folders):
        from fuzz_targets import TARGETS, RefusedError
    parser = TARGETS[target]

    def one(data: bytes) -> None:
        try:
            parser(data)
        except RefusedError:
            pass
        except Exception:
            print(f"{target}: {keep(target, data)}", flush=True)
            raise

    with tempfile.TemporaryDirectory() as folder:
        for k, data in enumerate([*parser.seeds, *kept(target)]):
            (Path(folder) / f"seed{k}").write_bytes(data)
        words = Path(folder).with_suffix(".dict")
        escaped = ["".join(f"\\x{byte:02x}" for byte in word) for word in parser.words]
        words.write_text("".join(f'"{word}"\n' for word in escaped))
        limits = [f"-timeout={MOST_SECONDS}", f"-max_total_time={int(seconds)}", f"-max_len={LONGEST}"]
        limits += [f"-seed={seed}", f"-rss_limit_mb={MOST_BYTES >> 20}", f"-artifact_prefix={folder}/"]
        quiet = ["-verbosity=0", "-print_final_stats=1", f"-dict={words}"]
        atheris.Setup([sys.argv[0], *limits, *quiet, folder], one)
        atheris.Fuzz()
    return 0


def main() -> int:
    """Give each target its share of the time, each in a process of its own; 1 when there is a find."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--minutes", type=float, default=10)
    options.add_argument("--target", action="append", default=[])
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    options.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    asked = options.parse_args()
    guided = importlib.util.find_spec("atheris") is not None
    if asked.seconds is not None:
        resource.setrlimit(resource.RLIMIT_AS, (4 * MOST_BYTES, 4 * MOST_BYTES))
        run = run_guided if guided else run_blindly
        return run(asked.target[0], asked.seconds, asked.seed)
    from fuzz_targets import TARGETS

    unknown = set(asked.target) - TARGETS.keys()
    if unknown:
        options.error(f"unknown target {min(unknown)}: one of {', '.join(TARGETS)}")
    targets = asked.target or list(TARGETS)
    how = "guided by coverage (atheris)" if guided else "without guidance: atheris is not installed"
    print(f"seed {asked.seed}, {len(targets)} targets, {how}", flush=True)
    found = 0
    for target in targets:
        share = ["--seconds", str(60 * asked.minutes / len(targets)), "--seed", str(asked.seed)]
        words = [sys.executable, __file__, "--target", target, *share]
        done = subprocess.run(
            words, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:])}, check=False
        )
        found += done.returncode != 0
    print("nothing found" if not found else f"{found} of {len(targets)} targets have a find", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
