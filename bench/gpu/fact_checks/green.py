"""Facts about green contexts: does work on a stream use only its own multiprocessors?"""

from collections.abc import Callable, Iterator
from importlib import import_module

import torch

from bench.gpu.fact_checks.answer import Answer, attempt
from bench.gpu.fact_checks.probe import Probe, Products
from muxcluster.engine.gpu.driver import Driver, GreenContext
from muxcluster.engine.gpu.green.ends import TwoEnds

SHARES = (0.5, 0.25, 0.75)


def green() -> Iterator[Answer]:
    """One split of the card, and parts from its two ends at three shares: each probed alone, and
    both together.

    Yields the answer so far after every step. What may leave an error that sticks to the context
    comes last, when the verdict is known.
    """
    probe, products = Probe(), Products()
    every = probe.run()
    whole = products.rate([torch.cuda.current_stream()])[0]
    driver = Driver()
    split = driver.split()
    rest = split.rest.sm_count if split.rest is not None else 0
    texts = [
        f"whole card: {len(every)} multiprocessors, {whole / 1e12:.0f} TFLOP/s; one split makes "
        f"{len(split.groups)} groups of {split.group_sms} and leaves {rest}, which "
        f"{'combine' if split.combines_rest else 'do not combine'} with groups"
    ]
    numbers: dict[str, object] = {"whole": {"sms": len(every), "flops_per_s": whole}}
    numbers["split"] = {"groups": len(split.groups), "group_sms": split.group_sms, "rest": rest}
    ends, confined, parts = TwoEnds(split), True, dict[float, list[GreenContext]]()
    for share in SHARES:
        resources = ends.from_start(share), ends.from_end(1.0 - share)
        parts[share] = [driver.create(each) for each in resources]
        found = _probed(parts[share], share, probe, products, whole)
        confined &= bool(found["confined"])
        numbers[f"share_{share}"] = found
        texts.append(_sentence(share, found, whole))
        yield Answer("yes" if confined else "no", ". ".join(texts), numbers)
    for name, call in _other_ways(driver, parts[SHARES[0]], probe).items():
        texts.append(attempt(name, call))
        yield Answer("yes" if confined else "no", ". ".join(texts), numbers)


def _probed(
    parts: list[GreenContext], share: float, probe: Probe, products: Products, whole: float
) -> dict[str, object]:
    """What each part reaches. Without ids (no such launch on a part's stream) the rate decides."""
    streams = [torch.cuda.ExternalStream(part.stream) for part in parts]
    found: dict[str, object] = {"granted": [part.sm_count for part in parts]}
    try:
        seen = [_seen(stream, probe) for stream in streams]
    except Exception as failure:  # noqa: BLE001 - the rates are still worth having
        found |= {"seen": f"not seen, {failure}", "shared_sms": "unknown number"}
    else:
        kept = (len(ids) <= part.sm_count for ids, part in zip(seen, parts, strict=True))
        shared = len(seen[0] & seen[1])
        found |= {"seen": [len(ids) for ids in seen], "shared_sms": shared}
        found["confined"] = all(kept) and not shared
    alone = [products.rate([stream])[0] for stream in streams]
    found["alone_flops_per_s"] = alone
    found["together_flops_per_s"] = products.rate(streams)
    found.setdefault("confined", alone[0] < 1.2 * share * whole)
    return found


def _seen(stream: torch.cuda.Stream, probe: Probe) -> set[int]:
    with torch.cuda.stream(stream):
        probe.launch()
    return probe.seen()


def _sentence(share: float, found: dict[str, object], whole: float) -> str:
    def shares(rates: object) -> str:
        assert isinstance(rates, list)
        return " + ".join(f"{rate / whole:.0%}" for rate in rates)

    return (
        f"asked for {share:.0%}: granted {found['granted']}, seen {found['seen']}, "
        f"{found['shared_sms']} in both; matmul rate alone {shares(found['alone_flops_per_s'])}, "
        f"together {shares(found['together_flops_per_s'])} of the whole card's"
    )


def _other_ways(
    driver: Driver, parts: list[GreenContext], probe: Probe
) -> dict[str, Callable[[], str]]:
    """Other ways to reach a part, and what else is good to know; the most dangerous last."""
    part = parts[0]
    stream = torch.cuda.ExternalStream(part.stream)

    def second_split() -> str:
        other = driver.create(TwoEnds(driver.split()).from_end(0.5))
        shared = _seen(stream, probe) & _seen(torch.cuda.ExternalStream(other.stream), probe)
        return f"{len(shared)} multiprocessors in common with the other half of the first split"

    def graph() -> str:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            probe.launch()
        probe.seen()
        with torch.cuda.stream(stream):
            captured.replay()
        on_part = len(probe.seen())
        captured.replay()
        return f"{on_part} multiprocessors on its stream, {len(probe.seen())} on the default stream"

    def current() -> str:
        driver.push(part)
        try:
            return f"{len(probe.run())} multiprocessors"
        finally:
            driver.pop()

    return {
        "half of a second split": second_split,
        f"a graph captured on the part of {part.sm_count}": graph,
        "torch.cuda.green_contexts": lambda: _of_torch(part.sm_count, probe),
        "the part made the current context": current,
    }


def _of_torch(sm_count: int, probe: Probe) -> str:
    """PyTorch's own wrapper, where this torch was built with it."""
    module = import_module("torch.cuda.green_contexts")
    made = module.GreenContext.create(num_sms=sm_count, device_id=0)
    made.set_context()
    try:
        return f"asked for {sm_count}, {len(probe.run())} multiprocessors"
    finally:
        made.pop_context()


CHECKS = {"green_contexts": green}
