"""The other side of bench/embeddings.py: sentence-transformers, in a process of its own.

Reads a line of JSON with its task from stdin: `path` of the model, `texts`, `batch_size`. For each
further line it encodes all texts and answers with a line: the seconds, and the vectors of `shown`.
"""

import json
import os
import sys
import time

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's

import torch
from sentence_transformers import SentenceTransformer


def main() -> None:
    """Encode as often as asked, on all cores."""
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no part of the answers
    task = json.loads(sys.stdin.readline())
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = SentenceTransformer(task["path"], device="cpu")
    texts, shown = task["texts"], task["shown"]
    model.encode(texts[:64], batch_size=task["batch_size"])
    with os.fdopen(out, "w") as answers:
        for _ in sys.stdin:
            start_s = time.perf_counter()
            vectors = model.encode(texts, batch_size=task["batch_size"])
            seconds = time.perf_counter() - start_s
            found = {"seconds": seconds, "vectors": vectors[:shown].tolist()}
            print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
