"""What went wrong on Spark, in a sentence a user can act on.

Owns the way from an exception of pyspark, py4j or gRPC to a `SparkError`; knows nothing of sessions.

A failed job arrives as a text of a hundred lines in which the cause is one: the last line of the traceback
of a Python worker or, when no Python failed, the last "Caused by" of the JVM. Both classic sessions and
Connect put these into the text of the exception, so the text is what is read.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramify.errors import RamifyError, SparkError

__all__ = ["doing", "job_failed", "root_cause"]

_LONGEST = 600


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Turn a failure of Spark inside the block into a SparkError that begins with `what`.

    Errors of Ramify, and of Python itself, pass as they are. `what` is a phrase like "pricing the log".
    """
    try:
        yield
    except ConnectionError as error:
        raise job_failed(error, what) from error
    except Exception as error:
        if isinstance(error, RamifyError) or not _is_sparks(error):
            raise
        raise job_failed(error, what) from error


def job_failed(error: BaseException, doing: str) -> SparkError:
    """The SparkError for a failed job: its root cause in a sentence or two, without the JVM's stack.

    An error of Ramify's that was raised in a task comes back as its own message, nothing before it.
    """
    text = _text(error)
    raised = _raised_in_task(text)
    if raised is not None and raised[0].startswith("ramify."):
        return SparkError(raised[1])
    return SparkError(f"{doing} failed: {root_cause(error)}")


def root_cause(error: BaseException) -> str:
    """What `error` comes down to, with what to do about it where that is known."""
    text = _text(error)
    raised = _raised_in_task(text)
    if raised is not None:
        name = raised[0].rpartition(".")[2]
        return f"{name}: {raised[1]}" if raised[1] else name
    for sign, meaning in _KNOWN:
        if re.search(sign, text):
            return meaning
    cause = _last_cause(text)
    file = re.search(r"while reading file (\S+?)\.?\s", text)
    return _cut(f"{file[1]}: {cause}" if file and Path(file[1]).name not in cause else cause)


_KNOWN = (
    (
        r"java\.lang\.OutOfMemoryError|OutOfMemoryError: |Java heap space",
        "Spark's JVM ran out of memory: give it more (memory=, spark.executor.memory on a cluster), "
        "or use more partitions",
    ),
    (
        r"Python worker (exited unexpectedly|crashed)|Python worker .*crashed|PYTHON_WORKER_EXITED",
        "a Python worker ended without a word, most often because the machine ran out of memory: "
        "use fewer task slots (local[1]) or smaller batches",
    ),
    (
        r"Py4JNetworkError|Answer from Java side is empty|ConnectionRefusedError|ConnectionResetError|"
        r"Error while sending or receiving|Error while obtaining a new communication channel",
        "the connection to Spark's JVM was lost: it has ended, or was killed",
    ),
    (r"StatusCode\.UNAUTHENTICATED", "the Connect server refused the token"),
    (
        r"StatusCode\.UNAVAILABLE",
        "the connection to the Connect server was lost: it has ended, or cannot be reached",
    ),
    (
        r"cancelled because SparkContext was shut down|SparkContext was shut down|stopped SparkContext",
        "the Spark session was stopped while the job ran",
    ),
)


def _text(error: BaseException) -> str:
    """All that an exception tells, its kind first."""
    parts = [f"{type(error).__name__}: "]
    try:
        parts.append(str(error).strip())
    except Exception as gone:
        # The text of a Py4JJavaError is asked of the JVM, which may be gone.
        if not isinstance(gone, ConnectionError | AttributeError) and not _is_sparks(gone):
            raise
        parts.append("Py4JNetworkError")
    return "".join(parts)


def _is_sparks(error: BaseException) -> bool:
    """Whether pyspark, py4j or gRPC raised it: they are not imported here only to be asked."""
    return any(kind.__module__.partition(".")[0] in _SPARKS for kind in type(error).__mro__)


_SPARKS = ("pyspark", "py4j", "grpc")


def _raised_in_task(text: str) -> tuple[str, str] | None:
    """The kind and the message of the exception that a Python worker's traceback ends with.

    The traceback is followed by the JVM's stack or by nothing. A message may have several lines: it goes
    from the first line that is not indented after the last frame. None, too, for an error that only
    passes on what the JVM says (a micro-batch runs in Python on the driver): the cause is in there.
    """
    start = text.rfind("Traceback (most recent call last):")
    if start < 0:
        return None
    block = re.split(
        r"\n+(?:\s*at [\w.$/]+\(|\s*Driver stacktrace|\s*JVM stacktrace|\s*SQLSTATE)", text[start:]
    )[0]
    lines = block.splitlines()
    frames = [i for i, line in enumerate(lines) if re.match(r'\s+File "', line)]
    for i in range(frames[-1] + 1 if frames else 1, len(lines)):
        match = re.match(r"([A-Za-z_][\w.]*)(?:: (.*)|:?$)", lines[i])
        if match:
            message = "\n".join([match[2] or "", *lines[i + 1 :]]).strip()
            return None if match[1].endswith("Py4JJavaError") else (match[1], message)
    return None


def _last_cause(text: str) -> str:
    """The innermost cause that the JVM names; else the first line of the message."""
    causes = re.findall(r"^Caused by: (.+)$", text, re.MULTILINE)
    if not causes:
        causes = re.findall(r"Lost task [^\n]*?\(TID [^)]*\)(?: \([^)]*\))?: ([^\n]+)", text)
    if causes:
        return _plain(causes[-1])
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and re.fullmatch(r"Py4JJavaError: An error occurred while calling .*", lines[0]):
        lines = [lines[1].removeprefix(": ")]
    return _plain(re.sub(r"^\w+: ", "", lines[0], count=1) if lines else "no reason was given")


def _plain(line: str) -> str:
    """A line of Spark's without the Java package of its exception, error class and SQLSTATE."""
    line = re.sub(r"^(?:[a-z]\w*\.)+([A-Z][\w$]*)", r"\1", line.strip())
    line = re.sub(r"^(?:\w*SparkException|AnalysisException|ExtendedAnalysisException): ", "", line)
    line = re.sub(r"\s*SQLSTATE: \w+;?", "", line)
    return re.sub(r"^\[([A-Z0-9_.]+)\] ", "", line).rstrip(";")


def _cut(sentence: str) -> str:
    return sentence if len(sentence) <= _LONGEST else sentence[: _LONGEST - 3] + "..."
