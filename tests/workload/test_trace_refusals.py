"""Malformed lines of traces are refused with file, line, field and what was expected."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.traces.alpaca import read_alpaca_lengths
from bench.traces.muxserve import read_chatlmsys_rates, read_point_rates
from bench.traces.servegen import read_servegen, read_total_rates
from bench.traces.servegen_offline import read_servegen_offline
from bench.traces.vidur import read_vidur_lengths
from muxcluster.core.errors import ConfigError
from muxcluster.workload.files.azure import read_azure
from muxcluster.workload.files.mooncake import read_mooncake

Read = Callable[[Path], object]


def azure(path: Path) -> object:
    return list(read_azure(path, "m"))


def mooncake(path: Path) -> object:
    return list(read_mooncake(path, "m"))


def offline(path: Path) -> object:
    return list(read_servegen_offline(path, "m"))


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
MOON = '{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
OFFLINE = '{"request_id": 0, "type": "text", "input_length": 17, "output_length": 5}\n'
RATES = "llm,model,rate_rps_condense500\nllm-1,llama-7b,8.5\n"
ALPACA = "prompt_idx,prompt_chars,m:chars\n0,100,50\n"


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        (azure, AZURE + "2023-11-16 18:15,1,1", "f:3: TIMESTAMP"),
        (azure, AZURE + AZURE[40:].replace("46", "45"), "f:3: TIME"),
        (azure, AZURE + "2023-11-16 18:15:47,1", "f:3: .*3 fields"),
        (azure, AZURE[:60], "f:2"),
        (azure, AZURE.replace("374", "37_4"), "f:2: ContextTokens"),
        (azure, "a,b\n1,2\n", "f:1: TIMESTAMP: expected this column"),
        (azure, "a,a,TIMESTAMP,ContextTokens,GeneratedTokens", "once"),
        (azure, AZURE + '2023-11-16 18:15:47,"1', "f:3: not CSV"),
        (mooncake, MOON + MOON.replace("3000", "1"), "f:2: timestamp"),
        (
            mooncake,
            MOON.replace("600", "6000"),
            "f:1: hash_ids: .* 12",
        ),
        (
            offline,
            OFFLINE.replace("text", "img"),
            "f:1: type",
        ),
        (offline, OFFLINE.replace("put_", ""), "f:1: input"),
        (lambda p: read_chatlmsys_rates(p, 500), RATES.replace("8.5", "1e999"), "f:2: rate_rps"),
        (lambda p: read_chatlmsys_rates(p, 500), RATES.replace("500", ""), "f:2: rate_rps"),
        (lambda p: read_point_rates(p, "x"), '[{"name": "y"}]', "f: x: expected one of y"),
        (lambda p: read_point_rates(p, "x"), "{}", "f: expected a list"),
        (lambda p: read_point_rates(p, "x"), '[{"name": "x"}]', "f: x.models: expected a list"),
        (lambda p: read_point_rates(p, "x"), "[\n", "f:2: not JSON"),
        (read_total_rates, "t_s,m\n0,1\n500,1\n", "f:3: t_s: expected a row every 600 s"),
        (read_vidur_lengths, "num_prefill_tokens,num_decode_tokens\n", "f: expected rows"),
        (read_vidur_lengths, "num_prefill_tokens,num_decode_tokens\n1,0\n", "f:2: num_decode"),
        (lambda p: read_alpaca_lengths(p, "n"), ALPACA, "f:2: n:chars: expected one of m"),
        (lambda p: read_alpaca_lengths(p, "m"), ALPACA.replace("50", ""), "f: m:chars: expected"),
    ],
)
def test_readers_name_the_place(tmp_path: Path, read: Read, text: str, reason: str) -> None:
    path = tmp_path / "f"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=reason):
        read(path)


LENGTHS = '{"7": {"day_mean_rate": 1, "windows": {"0": %s}}}'
WINDOW = (
    '{"input_tokens": {"mean": 2, "q": [1, 2, 3]}, "output_tokens": {"mean": 2, "q": [1, 2, 3]}}'
)
CLIENTS = "t_s,client,rate_per_s,cv,pattern,p1,p2\n0,7,0.5,1,Gamma,1,1\n"


@pytest.mark.parametrize(
    ("clients", "lengths", "reason"),
    [
        (CLIENTS.replace("Gamma", "Pareto"), LENGTHS % WINDOW, "csv:2: pattern"),
        (CLIENTS.replace("Gamma,1", "Gamma,0"), LENGTHS % WINDOW, "csv:2: p1"),
        (CLIENTS + "300,7,1,1,Gamma,1,1\n", LENGTHS % WINDOW, "csv:3: t_s: expected windows"),
        (CLIENTS, "[]", "expected an object of clients"),
        (CLIENTS, '{"7": {}}', "7: expected day_mean_rate and windows"),
        (CLIENTS, LENGTHS % "{}", r"7\.windows\.0: expected output_tokens"),
        (CLIENTS, LENGTHS % WINDOW.replace("[1, 2, 3]", "[3, 2, 1]"), "input_tokens: .* rising"),
        (CLIENTS, LENGTHS.replace('"0"', '"x"') % WINDOW, "expected seconds, found 'x'"),
        (CLIENTS, LENGTHS % "7", "expected an object of distributions"),
    ],
)
def test_servegen_names_the_place(tmp_path: Path, clients: str, lengths: str, reason: str) -> None:
    (tmp_path / "m.client_rates.csv").write_text(clients, encoding="utf-8")
    (tmp_path / "m.length_quantiles.json").write_text(lengths, encoding="utf-8")
    with pytest.raises(ConfigError, match=reason):
        read_servegen(tmp_path, "m")
