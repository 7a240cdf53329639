"""Reading of the file that `server.keys_file` names."""

from pathlib import Path

from pydantic import ValidationError

from muxcluster.config.problems import first_problem
from muxcluster.config.schema import KeySection, KeysFile
from muxcluster.config.yamlfile import read_yaml
from muxcluster.core.errors import ConfigError


def read_keys(path: Path) -> list[KeySection]:
    """Return the keys of a file. Raises ConfigError: one line with the file, its line and key."""
    content, lines = read_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(path, "", "expected keys: with a list")
    try:
        return KeysFile.model_validate(content).keys
    except ValidationError as error:
        raise first_problem(path, KeysFile, lines, error) from error
