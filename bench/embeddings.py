"""Embeddings of ragged texts: texts/s over HTTP against sentence-transformers' own batch encode.

The model has the shape of all-MiniLM-L6-v2 (22.7 million parameters, 6 layers of 384, mean pooling,
normalised) and random weights, in fp32. A text is words of its vocabulary, a token each; lengths
are lognormal with a median of 32 tokens, cut to 200. Ours is the whole server as `muxcluster serve`
starts it: a client on the same cores sends texts in lists of 256 to `/v1/embeddings`, four lists at
a time. Theirs, with `--sentence-transformers PYTHON`, the path of a Python that has it, is
`SentenceTransformer.encode` of the whole list in a process of its own, which sorts texts by length
and computes batches of 32 (its default); it pays for no HTTP. Both tokenise, both have all cores,
one after the other in every round, each going first in every other one. What is said is the median
over the rounds of the ratio inside a round, and the largest difference of two numbers of a vector.

Claims: ours over theirs and that difference; without `--sentence-transformers` texts/s alone.
"""

import base64
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel

from bench.harness import ROOT, Bench, Claim, cannot_run, make_parser
from bench.processes import settle
from muxcluster.cli.server.launch import free_address, prepare, serving, url_of
from muxcluster.config.load import load_config
from muxcluster.core.inputs.web_url import HttpAddress
from tests.models import as_embedder

NAME = "minilm"
SHAPE = {
    "vocab_size": 30_522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
}
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_LONGEST = 200  # words of a text; with the two special tokens well below the limit of 256
_MEDIAN, _SIGMA = 32, 0.9  # of the lengths, lognormal
_LIST, _AT_ONCE = 256, 4
_BATCH = 32
_SHOWN = 256  # texts whose vectors are compared
_GOAL = 1.2


def make_model(folder: Path) -> Path:
    """A directory in sentence-transformers' format."""
    path = folder / NAME
    torch.manual_seed(0)
    config = AutoConfig.for_model("bert", **SHAPE)
    model = AutoModel.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embeddings" not in name:
                parameter.mul_(2.0)  # so that vectors of different texts differ
    model.save_pretrained(path)
    vocabulary = {text: number for number, text in enumerate(_SPECIAL)}
    vocabulary |= {f"w{number}": number for number in range(len(_SPECIAL), SHAPE["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **names}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 256, "do_lower_case": False})
    )
    return with_sizes(as_embedder(path, pooling="mean_tokens"))


def with_sizes(path: Path) -> Path:
    """Add what sentence-transformers' pooling needs of the model, and make its other folder."""
    file = path / "1_Pooling" / "config.json"
    pooling = json.loads(file.read_text())
    file.write_text(json.dumps({"word_embedding_dimension": SHAPE["hidden_size"], **pooling}))
    (path / "2_Normalize").mkdir()
    return path


def ragged_texts(rng: random.Random, number: int) -> list[str]:
    """Texts of one to `_LONGEST` words."""
    found = []
    for _ in range(number):
        length = round(rng.lognormvariate(math.log(_MEDIAN), _SIGMA))
        length = min(max(1, length), _LONGEST)
        words = (rng.randrange(len(_SPECIAL), SHAPE["vocab_size"]) for _ in range(length))
        found.append(" ".join(f"w{word}" for word in words))
    return found


def write_config(path: Path) -> Path:
    config = path.parent / "embeddings.yaml"
    model = {"name": NAME, "path": str(path), "prompt_tokens": 50, "max_seqs": 512}
    config.write_text(yaml.safe_dump({"models": [model], "policy": {"kv_gb": 1}}))
    return config


class Ours:
    """A running server."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self._url = f"{url}/v1/embeddings"
        self._client = client

    def encode(self, texts: Sequence[str]) -> tuple[float, NDArray[np.float32]]:
        """Seconds, and the vectors [texts, size]. Raises httpx.HTTPError."""
        lists = [texts[first : first + _LIST] for first in range(0, len(texts), _LIST)]
        start_s = time.perf_counter()
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = list(threads.map(self._vectors, lists))
        return time.perf_counter() - start_s, np.concatenate(found)

    def _vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        body = {"model": NAME, "input": list(texts), "encoding_format": "base64"}
        answer = self._client.post(self._url, json=body, timeout=600).raise_for_status().json()
        data = [base64.b64decode(each["embedding"]) for each in answer["data"]]
        return np.array([np.frombuffer(each, dtype="<f4") for each in data])


class Theirs:
    """sentence-transformers in another Python."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def encode(self) -> tuple[float, NDArray[np.float32]]:
        """Seconds for all texts, and the vectors of the first ones."""
        answer = json.loads(self._ask("again"))
        return answer["seconds"], np.array(answer["vectors"], dtype=np.float32)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("sentence-transformers has ended")
        return answer


@contextmanager
def theirs(python: str, path: Path, texts: Sequence[str]) -> Iterator[Theirs]:
    """Start it, loaded before the first call of `encode` is timed."""
    script = str(ROOT / "bench" / "online" / "sentences.py")
    task = {"path": str(path), "texts": texts, "batch_size": _BATCH, "shown": _SHOWN}
    with subprocess.Popen(
        (python, script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(task)}\n")
        process.stdin.flush()
        try:
            yield Theirs(process)
        finally:
            process.stdin.close()


def check_other(python: str) -> None:
    """End the script where `python` is no Python that has sentence-transformers."""
    try:
        tried = subprocess.run((python, "-c", "import sentence_transformers"), capture_output=True)
    except OSError as error:
        cannot_run(f"--sentence-transformers {python}: {error.strerror}")
    if tried.returncode:
        cannot_run(f"--sentence-transformers {python}: this Python lacks it (pip install it there)")


def measure(
    ours: Ours, other: Theirs | None, texts: Sequence[str], rounds: int
) -> tuple[list[dict[str, float]], float | None]:
    """Seconds of both in each round, and the largest difference of two numbers."""
    found: list[dict[str, float]] = []
    worst = None
    for number in range(rounds):
        row: dict[str, float] = {}
        vectors: dict[str, NDArray[np.float32]] = {}
        sides = ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours")
        for side in sides:
            if side == "ours":
                row[side], vectors[side] = ours.encode(texts)
            elif other is not None:
                row[side], vectors[side] = other.encode()
        if other is not None:
            shown = len(vectors["theirs"])
            difference = float(np.abs(vectors["ours"][:shown] - vectors["theirs"]).max())
            worst = max(worst or 0.0, difference)
        found.append(row)
        print(json.dumps(row), flush=True)
    return found, worst


def claims_of(
    rows: Sequence[dict[str, float]], worst: float | None, num_texts: int
) -> Iterator[Claim]:
    yield Claim("texts_per_s", round(num_texts / median(row["ours"] for row in rows), 1), "texts/s")
    if worst is not None:
        over = median(row["theirs"] / row["ours"] for row in rows)
        yield Claim("over_sentence_transformers", round(over, 3), "x", _GOAL)
        yield Claim("largest_difference", worst, "", 1e-5)


def main() -> None:
    """Measure both in turn and publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--texts", type=int, metavar="N", help="default: 4096, quick: 256")
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 7, quick: 1")
    parser.add_argument("--sentence-transformers", metavar="PYTHON", help="a Python that has it")
    bench = Bench(parser)
    options = bench.options
    python = options.sentence_transformers
    if python is not None:
        check_other(python)
    num_texts = options.texts or (256 if options.quick else 4096)
    texts = ragged_texts(random.Random(options.seed), num_texts)
    rounds = options.rounds or (1 if options.quick else 7)
    with tempfile.TemporaryDirectory(prefix="bench-embeddings-") as folder:
        path = make_model(Path(folder))
        prepared = prepare(load_config(write_config(path)))
        prepared = prepared.listening(free_address(HttpAddress("127.0.0.1", 0)))
        with serving(prepared), httpx.Client() as client:
            ours = Ours(url_of(prepared.address), client)
            ours.encode(texts[: 2 * _LIST])
            settle()
            if python is None:
                rows, worst = measure(ours, None, texts, rounds)
            else:
                with theirs(python, path, texts) as other:
                    other.encode()  # loads
                    rows, worst = measure(ours, other, texts, rounds)
    lengths = sorted(text.count(" ") + 1 for text in texts)
    samples = {
        f"seconds {side}": [round(row[side], 3) for row in rows]
        for side in ("ours", "theirs")
        if side in rows[0]
    }
    bench.publish(
        list(claims_of(rows, worst, len(texts))),
        samples,
        model=SHAPE,
        texts=len(texts),
        tokens=sum(lengths) + 2 * len(texts),
        longest=lengths[-1],
    )


if __name__ == "__main__":
    main()
