"""Many people at once: tabs that ask for pages of several models, for minutes, and what that leaves behind.

    python benchmarks/soak.py [--sessions 16] [--minutes 3]

First one tab asks every question alone. Then all tabs ask them again in orders of their own, over websockets; some
reload, some are killed while they wait for an answer. The server keeps so few traces that most runs are made again.
Every answer must be the one that was given alone, but for the time that a run took; memory must be flat after warming
up, no thread, file or turn may be left, and the log must be empty of errors. Besides: `run` on 16 threads that take
turns, against one after another.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from report import MIB, Target, at_most, table, targets  # noqa: E402
from wire import Answer, Server, Tab, serving  # noqa: E402

from llama_core import load, run  # noqa: E402
from llama_core.checkpoints import local_models  # noqa: E402
from llama_core.settings import AT_ONCE  # noqa: E402
from pages.ui.queue import Queue  # noqa: E402

TIME = re.compile(r"(< )?[0-9.]+ (ms|s|min)\b( [0-9.]+ s)?")
"""How long something took, as pages say it."""
KEPT, FILES, HELD = 128, 3, MIB // 2
"""Sessions that Streamlit keeps when their tab has gone, in case it comes back; the files that each has open, and the
most bytes of it: 56 MiB more with 128 of them, and none more after 850 further tabs."""
FLAT, LEAK = 0.1, 3 * MIB // 4
"""The share by which memory may grow from the second quarter of the time to the last; the bytes that a tab may leave
within the first minute, in which 0.2 to 0.4 MiB were seen of a server that was flat afterwards."""
TEXTS = (
    "Mia had a red ball. She went to the park and met Sam.",
    "Tom had a blue kite. Tom gave the kite to Rosa. Rosa",
    "The capital of France is",
    "one two three four one two three",
)
VIEWS = (  # pages whose every number is there when the script ends
    ("Step_by_step", {"at": "1.weights", "head": 1}),
    ("Step_by_step", {"at": "0.gated"}),
    ("Step_by_step", {"at": "logits"}),
    ("Step_by_step", {"at": "1.scores", "until": "1.scores"}),
    ("Attention", {"look": "layer", "at": "1.weights"}),
    ("RoPE", {"at": "1.q_rot"}),
    ("Activations", {}),
    ("Edit", {"edit": "1.head_out zero h0-1; 0.mlp_out scale 0.5"}),
    ("Generate", {"new": 6}),
)


class Question(NamedTuple):
    """A link: a page and its query."""

    page: str
    query: dict[str, object]


def questions(models: Sequence[dict[str, object]], texts: Sequence[str] = TEXTS) -> list[Question]:
    """Each view of each model, with prompts in turn; a model without a tokenizer takes ids."""
    found = []
    for i, model in enumerate(models):
        for j, (page, query) in enumerate(VIEWS):
            ids = ",".join(str((7 * k * (j + 1) + i) % 60) for k in range(6 + 5 * j))
            prompt = {"ids": ids} if model.get("model") == "random" else {"prompt": texts[(i + j) % len(texts)]}
            found.append(Question(page, model | prompt | query))
    return found


def models(real: bool) -> list[dict[str, object]]:
    """Two random models and the one in the box; real: SmolLM2 too, where it is."""
    found = [{}, {"model": "random", "preset": "nano"}, {"model": "random", "seed": 5, "qk_norm": 1}]
    return found + [{"model": name} for name in local_models() if real and name.startswith("SmolLM2")]


class Said(NamedTuple):
    """Digests of all that a page shows, without its widgets, which only repeat what was asked. timed: with times."""

    numbers: str
    timed: str


def said(answer: Answer) -> Said:
    """What a page shows."""
    texts, pictures = [], []
    for place, delta in sorted(answer.shown.items()):
        kind = delta.new_element.WhichOneof("type")
        if kind == "html":
            texts.append(f"{place} {delta.new_element.html.body}")
        elif kind in ("markdown", "heading", "plotly_chart", "imgs"):
            pictures.append(repr(place).encode() + delta.new_element.SerializeToString(deterministic=True))
    text, rest = "".join(texts), b"".join(pictures)
    return Said(*(hashlib.sha256(each.encode() + rest).hexdigest() for each in (TIME.sub("", text), text)))


@dataclass
class Soak:
    """What happened. wrong: what was asked where another answer came; trouble: what broke."""

    alone: dict[str, Said] = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)
    ms: list[float] = field(default_factory=list)
    wrong: list[Question] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)  # tabs opened, bytes
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)

    @property
    def left(self) -> tuple[int, int]:
        """Threads and open files that the tabs have left, beside those of the sessions that Streamlit keeps."""
        return self.after[0] - self.before[0], self.after[1] - self.before[1] - FILES * self._kept(self.counts["tabs"])

    @property
    def growth(self) -> float:
        """By what share memory grew from the second quarter of the time to the last, beside sessions that are kept."""
        (_, early), (_, late) = self._quarters()
        return late / early - 1

    @property
    def left_by_a_tab(self) -> float:
        """The same in bytes for each tab opened between: in its first minute a server still fills what it may keep."""
        (before, early), (after, late) = self._quarters()
        return (late - early) / max(1.0, after - before)

    def _kept(self, tabs: float) -> float:
        """How many sessions more than at the beginning Streamlit keeps, when so many tabs have been opened."""
        return min(KEPT, len(self.alone) + tabs) - min(KEPT, len(self.alone))

    def _quarters(self) -> list[tuple[float, float]]:
        """The second and the last: tabs opened, and bytes beside those of the sessions that are kept; medians."""
        quarter = max(1, len(self.memory) // 4)
        found = []
        for some in (self.memory[quarter : 2 * quarter], self.memory[-quarter:]):
            tabs = statistics.median(opened for opened, _ in some)
            found.append((tabs, statistics.median(nbytes - HELD * self._kept(opened) for opened, nbytes in some)))
        return found


def ask_alone(server: Server, asked: Sequence[Question]) -> dict[str, Said]:
    """The answer to each question, in a tab of its own, one after another."""
    found = {}
    for question in asked:
        with Tab(server) as tab:
            found[repr(question)] = said(tab.ask(*question))
    return found


def soak(server: Server, asked: Sequence[Question], sessions: int, seconds: float) -> Soak:
    """Ask in so many tabs for so long, and watch the server."""
    here = Soak(ask_alone(server, asked))
    here.before = rest(server)
    end = time.monotonic() + seconds
    tabs = [threading.Thread(target=_sit, args=(here, server, asked, end, i), daemon=True) for i in range(sessions)]
    for tab in tabs:
        tab.start()
    while time.monotonic() < end:
        here.memory.append((here.counts["tabs"], server.nbytes()))
        time.sleep(min(1.0, seconds / 40))
    for tab in tabs:
        tab.join()
    here.after = rest(server)
    return here


def rest(server: Server) -> tuple[int, int]:
    """The server's threads and open files, once they have not changed for two seconds."""
    seen, end = [], time.monotonic() + 60
    while len(set(seen[-10:])) > 1 or len(seen) < 10:
        if time.monotonic() > end:
            break
        seen.append((server.threads(), server.files()))
        time.sleep(0.2)
    return seen[-1]


def _sit(here: Soak, server: Server, asked: Sequence[Question], end: float, seed: int) -> None:
    """One person: opens a tab, asks some questions, goes; every fourth time without waiting for the answer."""
    draw = random.Random(seed)
    try:
        while time.monotonic() < end:
            here.counts["tabs"] += 1
            with Tab(server) as tab:
                for question in draw.sample(asked, 3):
                    _compare(here, question, tab.ask(*question))
                if draw.random() < 0.25:
                    tab.send(*draw.choice(asked))
                    tab.kill()
                    here.counts["killed"] += 1
    except Exception as error:  # what would end the thread unseen
        here.trouble.append(repr(error))


def _compare(here: Soak, question: Question, answer: Answer) -> None:
    here.counts["answers"] += 1
    here.ms.append(answer.ms)
    now, alone = said(answer), here.alone[repr(question)]
    here.counts["made again"] += now.timed != alone.timed
    if now.numbers != alone.numbers:
        here.wrong.append(question)


def errors(log: Path) -> list[str]:
    """Lines of the log that tell of something that went wrong."""
    signs = ("Traceback", "Error", "ERROR", "Exception", "WARNING")
    return [line for line in log.read_text(encoding="utf-8").splitlines() if any(sign in line for sign in signs)]


def throughput(threads: int = 16, tokens: int = 64, rounds: int = 7) -> float:
    """Time of so many runs on threads that take turns, by the time of the same runs on threads one after another."""
    model = load(next((name for name in local_models() if name.startswith("SmolLM2")), "tiny-llama"))
    line = Queue(AT_ONCE.value)

    def work(i: int) -> None:
        with line.turn(lambda before: None):
            run(model, [(7 * k + i) % model.config.vocab_size for k in range(tokens)])

    def started(i: int) -> threading.Thread:
        worker = threading.Thread(target=work, args=(i,))
        worker.start()
        return worker

    def serial() -> None:
        for i in range(threads):
            started(i).join()

    def together() -> None:
        for worker in [started(i) for i in range(threads)]:
            worker.join()

    serial()
    return statistics.median(_seconds(together) / _seconds(serial) for _ in range(rounds))


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def claims(here: Soak, log: Path, ratio: float) -> list[Target]:
    """What is wanted of it. log: the server's; ratio: of `throughput`."""
    threads, files = here.left
    return [
        counted("answers that are not as one tab alone has them", len(here.wrong)),
        counted("errors of tabs, and in the log", len(here.trouble) + len(errors(log))),
        counted("threads left", threads),
        counted("files left open", files),
        at_most("growth of memory after warming up", here.growth, FLAT),
        at_most("`run` on 16 threads that take turns / one after another", ratio, 1.1),
    ]


def counted(what: str, n: int) -> Target:
    """A target of none."""
    return Target(what, str(n), "0", n <= 0)


def happened(here: Soak, sessions: int) -> str:
    """The rest, as a table."""
    rows = [
        ("answers", here.counts["answers"]),
        ("of runs that were made again", here.counts["made again"]),
        ("tabs opened", here.counts["tabs"]),
        ("killed while they waited", here.counts["killed"]),
        ("an answer, median and longest, ms", f"{statistics.median(here.ms):.0f}, {max(here.ms):.0f}"),
        (
            "memory, early and at the most, MiB",
            f"{here.memory[0][1] / MIB:.0f}, {max(nbytes for _, nbytes in here.memory) / MIB:.0f}",
        ),
    ]
    return table([f"{sessions} sessions", ""], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--trace-mib", type=int, default=64, help="what the server may keep of traces")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with serving(log, GLASS_LLAMA_TRACE_MIB=str(given.trace_mib)) as server:
            here = soak(server, questions(models(real=True)), given.sessions, 60 * given.minutes)
        print(targets(claims(here, log, throughput())))
        print(happened(here, given.sessions))
        for each in (*map(repr, here.wrong[:10]), *here.trouble[:10], *errors(log)[:10]):
            print(each)


if __name__ == "__main__":
    main()
