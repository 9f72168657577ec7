#!/usr/bin/env python3
"""Put the collections of requirements.yml into a folder, from Galaxy or, where that is out of reach, from PyPI.

usage: fetch_collections.py REQUIREMENTS FOLDER

PyPI's `ansible` package carries them all; only the wanted ones are taken out of its wheel (3 MB of 54).
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import yaml

CARRIER = "ansible==12.3.0"


def wanted(requirements):
    """{'community.docker': '4.8.5', ...}"""
    listed = yaml.safe_load(Path(requirements).read_text())["collections"]
    return {item["name"]: str(item["version"]) for item in listed}


def present(name, version, folder):
    manifest = folder / "ansible_collections" / Path(*name.split(".")) / "MANIFEST.json"
    return manifest.exists() and json.loads(manifest.read_text())["collection_info"]["version"] == version


def from_galaxy(requirements, folder):
    argv = ["ansible-galaxy", "collection", "install", "-r", requirements, "-p", str(folder), "--timeout", "10"]
    return subprocess.run(argv, capture_output=True).returncode == 0


def from_pypi(names, folder):
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, CARRIER], check=True
        )
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            places = tuple(f"ansible_collections/{name.replace('.', '/')}/" for name in names)
            wheel.extractall(folder, [item for item in wheel.namelist() if item.startswith(places)])


def main(requirements, folder):
    folder, missing = Path(folder), wanted(requirements)
    missing = {name: version for name, version in missing.items() if not present(name, version, folder)}
    if not missing:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    if not from_galaxy(requirements, folder):
        from_pypi(missing, folder)
    wrong = [name for name, version in missing.items() if not present(name, version, folder)]
    if wrong:
        print(f"not available in the pinned version: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
